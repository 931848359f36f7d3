import contextlib
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable

import psutil
import pytest
from processes import is_alive

OWNER = """
    import subprocess, sys
    from slime_rl.guard import Guard
    earlier = subprocess.Popen(["sleep", "600"], start_new_session=True)
    print(earlier.pid, flush=True)
    with Guard():
        child = subprocess.Popen(["sleep", "600"], start_new_session=True)
        print(child.pid, flush=True)
        sys.stdin.readline()
        if {status}: raise SystemExit({status})
"""
WAIT_S = 60.0
POLL_S = 0.02
QUIET_S = 0.3
"""The guard goes round all processes once a second; within a round it never stops reading for so long."""


class Owner:
    """A process under a guard: `earlier` is a child it had before, `child` one that the guard watches over."""

    def __init__(self, code: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(code)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.earlier, self.child = (psutil.Process(int(self.process.stdout.readline())) for _ in range(2))
        [self._guard] = [p for p in psutil.Process(self.process.pid).children() if "slime_rl.guard" in p.cmdline()]

    def wait_until_noted(self) -> None:
        """Return once a round of the guard that began after this call has ended: when the third one begins."""
        for _ in range(2):
            self._wait_for_a_round()
            seen, since = self._num_reads(), time.monotonic()
            while time.monotonic() - since < QUIET_S:
                time.sleep(POLL_S)
                if self._num_reads() != seen:
                    seen, since = self._num_reads(), time.monotonic()
        self._wait_for_a_round()

    def go_on(self) -> int:
        """Let the owner go on to its end; its exit status."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self.process.wait(WAIT_S)

    def end(self) -> None:
        """Kill whatever is left."""
        for process in (self.earlier, self.child, self.process):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        with self.process:  # closes the pipes
            self.process.wait(WAIT_S)

    def _wait_for_a_round(self) -> None:
        seen = self._num_reads()
        assert becomes_true(lambda: self._num_reads() > seen)

    def _num_reads(self) -> int:
        return self._guard.io_counters().read_count


@pytest.fixture
def start_owner():
    """Starts owners; ends them and their children after the test, however it went."""
    owners = []

    def start(*, status: int = 0) -> Owner:
        owners.append(Owner(OWNER.format(status=status)))
        return owners[-1]

    yield start
    for owner in owners:
        owner.end()


def becomes_true(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True


@pytest.mark.slow
def test_an_owner_that_is_killed_takes_what_it_started_with_it(start_owner):
    owner = start_owner()
    owner.wait_until_noted()
    owner.process.kill()
    assert becomes_true(lambda: not is_alive(owner.child))
    assert is_alive(owner.earlier)


@pytest.mark.slow
def test_an_owner_that_fails_takes_what_it_started_with_it(start_owner):
    owner = start_owner(status=3)
    assert owner.go_on() == 3
    assert becomes_true(lambda: not is_alive(owner.child))
    assert is_alive(owner.earlier)


@pytest.mark.slow
def test_an_owner_that_ends_in_good_order_leaves_its_children_alone(start_owner):
    owner = start_owner()
    owner.wait_until_noted()
    assert owner.go_on() == 0
    assert is_alive(owner.earlier)
    assert is_alive(owner.child)
