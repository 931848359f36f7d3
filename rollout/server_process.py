"""A server in a subprocess that dies with its owner, with a log file and bounded waits."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from slime_rl.errors import EngineError
from slime_rl.rollout import launcher

STOP_TIMEOUT_S = 20.0
GROUP_TIMEOUT_S = 10.0
POLL_S = 0.02
STACKS_S = 0.5
TAIL_BYTES = 16384


class ServerProcess:
    """A server command under a launcher (see `launcher`), in a process group of its own.

    `arguments` reach the server as one line of JSON on its standard input, so that no secret stands in a process list.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        name: str,
        arguments: Mapping[str, Any],
        environment: Mapping[str, str],
        log_path: Path,
        grace_s: float,
    ) -> None:
        self.name = name
        self.log_path = log_path
        log_path.parent.mkdir(parents=True, exist_ok=True)
        with open(log_path, "ab", opener=_private) as log:
            self._launcher = subprocess.Popen(
                [sys.executable, "-I", launcher.__file__, str(grace_s), *command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=dict(environment),
                start_new_session=True,
            )
        assert self._launcher.stdin is not None
        try:
            self._launcher.stdin.write(json.dumps(arguments).encode() + b"\n")
            self._launcher.stdin.flush()
        except BrokenPipeError:
            raise EngineError(f"{self.name} ended before it read its arguments; {self.log_tail()}") from None

    @property
    def pid(self) -> int:
        """The id of the launcher, which is the id of the process group too."""
        return self._launcher.pid

    @property
    def exit_status(self) -> int | None:
        """The exit status of the server, or None while it runs."""
        return self._launcher.poll()

    def log_tail(self, lines: int = 12) -> str:
        """The end of the log as a phrase for an error message."""
        with open(self.log_path, "rb") as log:
            log.seek(0, os.SEEK_END)
            log.seek(max(0, log.tell() - TAIL_BYTES))
            text = log.read().decode("utf-8", "replace")
        tail = "\n".join([line for line in text.splitlines() if line.strip()][-lines:])
        return f"the last lines of {self.log_path}:\n{tail}"

    def show_stacks(self) -> None:
        """Have every process of the group that can write its threads' stacks to the log do so, in STACKS_S."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGUSR1)
        time.sleep(STACKS_S)

    def check_running(self) -> None:
        """Raise EngineError with the end of the log if the server has ended."""
        if self.exit_status is not None:
            raise EngineError(f"{self.name} ended with exit status {self.exit_status}; {self.log_tail()}")

    def wait(self, timeout_s: float) -> int:
        """The exit status of the server once it has ended; raises EngineError after `timeout_s`."""
        try:
            return self._launcher.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise EngineError(f"{self.name} still runs after {timeout_s:.0f} s") from None

    def stop(self) -> None:
        """End the server and its whole process group; returns when none of them is left.

        Raises EngineError if a process outlives SIGKILL.
        """
        assert self._launcher.stdin is not None
        self._launcher.stdin.close()
        try:
            self.wait(STOP_TIMEOUT_S)
        except EngineError:
            self._launcher.kill()
            self.wait(GROUP_TIMEOUT_S)
        self._kill_group()

    def _kill_group(self) -> None:
        deadline = time.monotonic() + GROUP_TIMEOUT_S
        while time.monotonic() < deadline:
            try:
                os.killpg(self.pid, signal.SIGKILL)
            except ProcessLookupError:
                return
            time.sleep(POLL_S)
        raise EngineError(f"{self.name}: processes of group {self.pid} are left {GROUP_TIMEOUT_S:.0f} s after SIGKILL")


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
