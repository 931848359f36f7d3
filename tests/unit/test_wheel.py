import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("rollout", "trainer", "buffer", "rewards")


def pip(command: str, *arguments: str) -> None:
    options = ("--quiet", "--no-deps", "--no-index")
    subprocess.run([sys.executable, "-m", "pip", command, *options, *arguments], check=True)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """The wheel that the source distribution builds, which is what an index serves."""
    folder = tmp_path_factory.mktemp("dist")
    build = "from hatchling.build import build_sdist; print(build_sdist({!r}))"
    sdist = subprocess.run(
        [sys.executable, "-c", build.format(str(folder))], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.splitlines()[-1]
    pip("wheel", "--no-build-isolation", "--wheel-dir", str(folder), str(folder / sdist))
    return next(folder.glob("*.whl"))


@pytest.mark.slow
def test_the_wheel_holds_code_scripts_and_the_install_data(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    for package in PACKAGES:
        assert f"slime_rl/{package}/__init__.py" in names
        assert f"{package}/__init__.py" not in names
    assert "slime_rl/install/constraints-cpu.txt" in names
    assert "slime_rl/install/shims/sgl_kernel/__init__.py" in names
    assert {"slime_rl/demo/config.yaml", "slime_rl/demo/warm_up.yaml"} <= names
    assert [name for name in names if name.startswith("slime_rl/buffer/lua/") and name.endswith(".lua")]


@pytest.mark.slow
def test_an_installed_wheel_imports_from_another_folder(wheel, tmp_path):
    site = tmp_path / "site"
    pip("install", "--target", str(site), str(wheel))
    code = f"import sys; sys.path.insert(0, {str(site)!r}); import slime_rl; print(slime_rl.__file__)\n" + "".join(
        f"import slime_rl.{package}\n" for package in PACKAGES
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(str(site))
