"""Ends every process of a run when its driver dies, however it dies: `python -m slime_rl.guard OWNER_PID`.

Agents of Ray keep each other alive after their raylet is gone, and servers start sessions of their own, so neither
process groups nor parent-death signals reach all of them. The guard lives in a session of its own, waits on a pipe
from the driver, and notes once a second which new processes descend from it. End of file without a farewell means that
the driver died or failed: the guard kills whatever it has noted. It imports the standard library only.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from types import TracebackType
from typing import Self

READY, FAREWELL = b"!", b"."
PERIOD_S = 1.0
SWEEP_TIMEOUT_S = 10.0

Process = tuple[int, int]
"""A pid and its start time: a pid alone may have been given to somebody else."""


class Guard:
    """Watches over the processes started inside its `with` block: none of them outlives a block that fails."""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "slime_rl.guard", str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        self._process.stdout.read(len(READY))  # from here on, what is started is noted
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.communicate(FAREWELL if kind is None else b"")


def main() -> None:
    """Note descendants until the pipe ends, then kill them unless the owner said farewell."""
    owner = int(sys.argv[1])
    before = descendants({owner})
    os.write(sys.stdout.fileno(), READY)
    noted: set[Process] = set()
    while not select.select([sys.stdin.buffer], [], [], PERIOD_S)[0]:
        noted = living(noted) | descendants({owner}) - before
    if os.read(sys.stdin.fileno(), 1) != FAREWELL:
        sweep(living(noted) | descendants({owner}) - before)


def sweep(noted: set[Process]) -> None:
    """Kill the noted processes and their descendants until none is left."""
    deadline = time.monotonic() + SWEEP_TIMEOUT_S
    while (noted := living(noted)) and time.monotonic() < deadline:
        noted |= descendants({pid for pid, _ in noted})
        for pid, _ in noted:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.05)


def descendants(roots: set[int]) -> set[Process]:
    """The children of `roots` and theirs, this process aside."""
    table = processes()
    found: set[Process] = set()
    family = set(roots)
    grew = True
    while grew:
        born = {pid for pid, (parent, _) in table.items() if parent in family and pid not in family}
        born.discard(os.getpid())
        family |= born
        found |= {(pid, table[pid][1]) for pid in born}
        grew = bool(born)
    return found


def living(noted: set[Process]) -> set[Process]:
    """Those of `noted` that still run."""
    table = processes()
    return {(pid, start) for pid, start in noted if pid in table and table[pid][1] == start}


def processes() -> dict[int, tuple[int, int]]:
    """The parent and start time of every process that is no zombie, by pid (proc(5), fields 4 and 22)."""
    table: dict[int, tuple[int, int]] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if fields[0] != b"Z":
            table[int(name)] = int(fields[1]), int(fields[19])
    return table


if __name__ == "__main__":
    main()
