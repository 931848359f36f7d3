import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

OWNER = """
    import os, subprocess, sys, time
    from slime_rl.guard import Guard
    with Guard():
        child = subprocess.Popen(["sleep", "600"], start_new_session=True)
        print(child.pid, flush=True)
        {then}
"""


def start_owner(then: str) -> tuple[subprocess.Popen, int]:
    owner = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(OWNER).format(then=then)], stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None
    return owner, int(owner.stdout.readline())


def wait_until_gone(pid: int, *, timeout_s: float = 10.0) -> bool:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if not Path(f"/proc/{pid}").exists():
            return True
        time.sleep(0.05)
    return False


@pytest.mark.slow
def test_a_killed_owner_takes_children_in_other_sessions_with_it():
    owner, child = start_owner("time.sleep(600)")
    with owner:
        time.sleep(1.5)  # the guard notes processes once a second
        owner.kill()
    assert wait_until_gone(child)


@pytest.mark.slow
def test_an_owner_that_ends_in_good_order_leaves_its_children_alone():
    owner, child = start_owner("time.sleep(1.5)")
    with owner:
        assert owner.wait(timeout=10) == 0
    assert Path(f"/proc/{child}").exists()
    subprocess.run(["kill", "-9", str(child)], check=True)
