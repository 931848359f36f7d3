"""Starts a server in its own process group and ends the whole group when its owner is gone.

Run as a script, `python -I launcher.py GRACE_S COMMAND...`, with the standard library only, so that it is up at once.
Standard input is both the hand-over of the server's arguments and the owner's lifeline: its first line becomes the
server's standard input, and its end, which comes even if the owner is killed with signal 9, ends the server.

Who dies with whom:

- the owner goes: end of file here, the group is ended;
- this process is killed: the kernel kills the server (PR_SET_PDEATHSIG), the owner's `stop` the rest of the group;
- the server goes: whatever it left behind is killed, processes with sessions of their own too, since orphans become
  children of this process (PR_SET_CHILD_SUBREAPER); its exit status is passed on.
"""

import contextlib
import ctypes
import os
import pathlib
import select
import signal
import subprocess
import sys
import time

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
REAP_TIMEOUT_S = 10.0
POLL_S = 0.02

libc = ctypes.CDLL(None, use_errno=True)


def main() -> int:
    """Run the command of the command line and return its exit status, 128 + signal for one that was killed."""
    grace_s, command = float(sys.argv[1]), sys.argv[2:]
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # for those of the group that show their stacks on it
    ended = signal_pipe(signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    server = start(command, read_line(sys.stdin.fileno()))
    while server.poll() is None:
        ready, _, _ = select.select([sys.stdin, ended], [], [])
        if sys.stdin in ready or set(os.read(ended, 64)) - {signal.SIGCHLD}:
            end(server, grace_s)
    kill_descendants()
    return server.returncode if server.returncode >= 0 else 128 - server.returncode


def prctl(option: int, value: int) -> None:
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}) failed")


def signal_pipe(*signals: signal.Signals) -> int:
    """The reading end of a pipe on which each of `signals` arrives as one byte."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in signals:
        signal.signal(number, lambda *_: None)
    return reader


def read_line(fd: int) -> bytes:
    """The first line of `fd`, byte by byte, so that what follows stays unread."""
    line = bytearray()
    while not line.endswith(b"\n") and (byte := os.read(fd, 1)):
        line += byte
    return bytes(line)


def start(command: list[str], arguments: bytes) -> "subprocess.Popen[bytes]":
    """Start the server in this process group, with `arguments` on its standard input."""
    launcher = os.getpid()

    def die_with_launcher() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != launcher:
            os._exit(1)

    server = subprocess.Popen(command, stdin=subprocess.PIPE, preexec_fn=die_with_launcher)
    assert server.stdin is not None
    with contextlib.suppress(BrokenPipeError), server.stdin as pipe:
        pipe.write(arguments)
    return server


def end(server: "subprocess.Popen[bytes]", grace_s: float) -> None:
    """Ask the server to end, and kill it after `grace_s`."""
    server.terminate()
    try:
        server.wait(grace_s)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


def kill_descendants() -> None:
    """Kill and reap until no child is left; an orphan of a killed child turns up here in the next round."""
    deadline = time.monotonic() + REAP_TIMEOUT_S
    while time.monotonic() < deadline:
        for pid in children():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                time.sleep(POLL_S)
        except ChildProcessError:
            return


def children() -> list[int]:
    """Every process whose parent is this one; /proc/PID/stat holds the parent's id behind the name and the state."""
    found = []
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            if parent == os.getpid():
                found.append(int(stat.parent.name))
    return found


if __name__ == "__main__":
    raise SystemExit(main())
