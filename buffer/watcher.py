"""Ends a server with its owner: a process of its own, run by its path, that imports nothing but the standard library.

    python watcher.py FOLDER COMMAND ...

Standard input is a pipe whose other end the owner keeps open. When that end closes, whether the owner said so or was
killed, the server is ended and the socket's folder removed. Exits with the server's status.
"""

import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys

GRACE_S = 10.0
PR_SET_PDEATHSIG = 1


def main(folder: str, *command: str) -> int:
    """Run the server until it or the owner ends."""
    libc = ctypes.CDLL(None)
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=lambda: die_with_parent(libc))
    select.select([sys.stdin, os.pidfd_open(server.pid)], [], [])
    status = end(server)
    shutil.rmtree(folder, ignore_errors=True)  # a server that was killed leaves its socket
    return status


def die_with_parent(libc: ctypes.CDLL) -> None:
    """Between fork and exec: the server ends if this watcher is killed."""
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def end(server: subprocess.Popen) -> int:
    """Let the server write what it holds and exit, or kill it after a while."""
    server.terminate()
    try:
        return server.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        server.kill()
        return server.wait()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
