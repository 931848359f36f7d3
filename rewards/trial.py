"""Tries whether a reward or a filter loads, in a process of its own, before anything else starts."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess

from slime_rl.errors import ConfigError
from slime_rl.rewards.functions import Kind, check_function
from slime_rl.rewards.grader import command
from slime_rl.rewards.wire import read

END_TIMEOUT_S = 10.0


def check_loads(kind: Kind, name: str, *, timeout_s: float) -> None:
    """Start a grader for the function that `name` stands for, and end it once it has loaded it.

    What the function's module prints on import goes nowhere. Raises ConfigError for the field of its kind with the
    last line of the traceback, or after `timeout_s`.
    """
    check_function(kind, name)
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            grader = subprocess.Popen(
                command(kind, name, theirs.fileno()),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                process_group=0,
            )
        ours.settimeout(timeout_s)
        try:
            with ours.makefile("rb") as replies:
                reply = read(replies)
        except TimeoutError:
            raise ConfigError(kind.path, f"must load within {timeout_s:g} s", name) from None
        except ConnectionError:
            reply = None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(grader.pid, signal.SIGKILL)
            status = grader.wait(END_TIMEOUT_S)
    if reply is None:
        raise ConfigError(kind.path, f"must load (it ended its process with exit status {status})", name)
    if "error" in reply:
        raise ConfigError(kind.path, f"must load ({reply['error']})", name)
