"""What tests ask of processes that may end at any moment."""

import time
from collections.abc import Callable, Iterable
from typing import TypeVar

import psutil

Found = TypeVar("Found")


def wait_for(condition: Callable[[], Found], what: str, timeout_s: float = 10.0) -> Found:
    """Poll until `condition` returns something true, and return that."""
    deadline = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < deadline, f"waited {timeout_s:g} s for {what}"
        time.sleep(0.01)
    return found


def is_alive(process: psutil.Process) -> bool:
    """Whether it still runs; a zombie without a reaper counts as ended."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_until_ended(processes: Iterable[psutil.Process], timeout_s: float = 10.0) -> None:
    """Wait for the end of them all; what still runs then is named."""
    left = list(processes)

    def all_ended() -> bool:
        left[:] = filter(is_alive, left)
        return not left

    wait_for(all_ended, f"the end of {left}", timeout_s)
