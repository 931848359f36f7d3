import subprocess
import sys

import pytest

HEAVY = ("torch", "ray", "megatron", "sglang", "redis", "transformers", "fsspec")


@pytest.mark.parametrize(
    "modules",
    [
        "slime_rl.loop, slime_rl.rewards, slime_rl.config",
        "slime_rl.cli",
        "slime_rl.rewards.pool, slime_rl.rewards.exact_match",
        "slime_rl.buffer.memory, slime_rl.buffer.codec, slime_rl.buffer.dataset",
    ],
)
def test_light_modules_load_no_heavy_library(modules):
    code = f"import sys, {modules}; print([m for m in {HEAVY} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("package", ["rollout", "trainer", "buffer", "rewards"])
def test_a_package_refuses_its_bare_name(package):
    done = subprocess.run([sys.executable, "-c", f"import {package}"], capture_output=True, text=True, check=False)
    assert f"import slime_rl.{package}, not {package}" in done.stderr
