"""Keeps a server up and ends it with its owner: a process of its own that imports nothing but the standard library.

    python watcher.py FOLDER LOCK COMMAND ...

Standard input is a pipe whose other end the owner keeps open. When that end closes, whether the owner said so or was
killed, the server is ended and FOLDER, which holds its socket, removed. A server that dies before is started again, a
bounded number of times. LOCK is the descriptor of the locked data folder: the server inherits it, so that the lock
lasts as long as either process. Exits with the server's last status.
"""

import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
import time

GRACE_S = 10.0
MAX_RESTARTS = 5
PAUSE_S = 0.05  # before the first restart; doubled before each further one
HOPELESS_S = 1.0  # a server that exits with a complaint sooner than this cannot start
PR_SET_PDEATHSIG = 1


def main(folder: str, lock: str, *command: str) -> int:
    """Run the server until the owner ends, or the server for good."""
    status, restarts = 0, 0
    while True:
        began = time.monotonic()
        server = start(command, int(lock))
        if owner_ended(server):
            status = end(server)
            break
        status = server.wait()
        if restarts == MAX_RESTARTS or (status > 0 and time.monotonic() < began + HOPELESS_S):
            print(f"the server ended with status {status} and is not started again", flush=True)
            break
        print(f"the server ended with status {status}; restart {restarts + 1} of {MAX_RESTARTS}", flush=True)
        if select.select([sys.stdin], [], [], PAUSE_S * 2**restarts)[0]:
            break
        restarts += 1
    shutil.rmtree(folder, ignore_errors=True)  # a server that was killed leaves its socket
    return status


def start(command: tuple[str, ...], lock: int) -> subprocess.Popen:
    """The server's process, which holds the lock too."""
    libc, watcher = ctypes.CDLL(None), os.getpid()
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, pass_fds=[lock], preexec_fn=lambda: die_with_parent(libc, watcher)
    )


def die_with_parent(libc: ctypes.CDLL, parent: int) -> None:
    """Between fork and exec: the server ends if this watcher is killed, or has been by now."""
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGTERM)


def owner_ended(server: subprocess.Popen) -> bool:
    """Wait for the end of the server or of its owner; whether it was the owner's."""
    process = os.pidfd_open(server.pid)
    try:
        return sys.stdin in select.select([sys.stdin, process], [], [])[0]
    finally:
        os.close(process)


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
