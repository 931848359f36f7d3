import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

OWNER = """
    import os, subprocess, sys, time
    from slime_rl.guard import Guard
    earlier = subprocess.Popen(["sleep", "600"], start_new_session=True)
    print(earlier.pid, flush=True)
    with Guard():
        child = subprocess.Popen(["sleep", "600"], start_new_session=True)
        print(child.pid, flush=True)
        {then}
"""


def start_owner(then: str) -> tuple[subprocess.Popen, int, int]:
    """The owner, a child it had before, and one it started under the guard."""
    owner = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(OWNER).format(then=then)], stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None
    return owner, int(owner.stdout.readline()), int(owner.stdout.readline())


def wait_until_gone(pid: int, *, timeout_s: float = 10.0) -> bool:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if not Path(f"/proc/{pid}").exists():
            return True
        time.sleep(0.05)
    return False


@pytest.mark.slow
@pytest.mark.parametrize("end", ["time.sleep(600)", "time.sleep(1.5); raise SystemExit(3)"])
def test_an_owner_that_dies_or_fails_takes_what_it_started_with_it(end):
    owner, earlier, child = start_owner(end)
    with owner:
        if "600" in end:
            time.sleep(1.5)  # the guard notes processes once a second
            owner.kill()
    assert wait_until_gone(child)
    assert Path(f"/proc/{earlier}").exists()
    os.kill(earlier, signal.SIGKILL)


@pytest.mark.slow
def test_an_owner_that_ends_in_good_order_leaves_its_children_alone():
    owner, earlier, child = start_owner("time.sleep(1.5)")
    with owner:
        assert owner.wait(timeout=10) == 0
    for left in (earlier, child):
        os.kill(left, signal.SIGKILL)
