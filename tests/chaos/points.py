"""Labelled points of the chaos test's processes, at which one of them, or the server, is killed or stopped."""

from __future__ import annotations

import contextlib
import os
import signal
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import redis

from slime_rl.buffer.blobs import FolderBlobs
from slime_rl.buffer.envelope import Bytes
from slime_rl.buffer.redis_buffer import RedisBuffer


@dataclass(frozen=True, slots=True)
class Arm:
    """What is killed when a point, ROLE:ACTION:before or :after, is passed for the `occurrence`-th time.

    `self` is the process that passes it; `pause` stops that one instead, until it has been given up for dead. With
    `forget` the server loses all it has of the run before that.
    """

    label: str
    occurrence: int = 1
    victim: Literal["self", "server", "pause"] = "self"
    forget: bool = False

    def __str__(self) -> str:
        occurrence = f"#{self.occurrence}" if self.occurrence > 1 else ""
        return f"{self.victim}@{self.label}{occurrence}{'+forget' if self.forget else ''}"


@dataclass(frozen=True, slots=True)
class Setting:
    """Where a round takes place; it is the same for all its processes, and `arms` go off one after another."""

    url: str
    server_pid: int
    folder: Path
    pacing: dict[str, Any]
    arms: tuple[Arm, ...]

    def fired(self, number: int) -> Path:
        """The file that says that an arm went off."""
        return self.folder / f"fired-{number}"


class Points:
    """The points of one process, which plays `role`."""

    def __init__(self, setting: Setting, role: str) -> None:
        self._setting = setting
        self._role = role
        self._passed: Counter[str] = Counter()

    def reach(self, action: str) -> None:
        """Pass a point: whatever is armed there goes off."""
        label = f"{self._role}:{action}"
        self._passed[label] += 1
        for number, arm in enumerate(self._setting.arms):
            if self._setting.fired(number).exists():
                continue
            if arm.label == label and self._passed[label] == arm.occurrence:
                self._strike(number, arm)
            return

    @contextlib.contextmanager
    def around(self, action: str):
        """The points before and after what is done in the block."""
        self.reach(f"{action}:before")
        yield
        self.reach(f"{action}:after")

    def _strike(self, number: int, arm: Arm) -> None:
        try:
            os.close(os.open(self._setting.fired(number), os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return  # another process of this role came first
        if arm.forget:
            with redis.Redis.from_url(self._setting.url) as admin:
                admin.flushall()
        victim = self._setting.server_pid if arm.victim == "server" else os.getpid()
        os.kill(victim, signal.SIGSTOP if arm.victim == "pause" else signal.SIGKILL)


def armed(points: Points) -> type[RedisBuffer]:
    """A buffer that passes a point before and after each call of a function, and around each blob that it writes."""

    class ArmedBuffer(RedisBuffer):
        async def _run(self, name: str, *args: Any) -> dict[str, Any]:
            with points.around(name):
                return await super()._run(name, *args)

    put = FolderBlobs.put

    def armed_put(self: FolderBlobs, name: str, parts: Iterable[Bytes]) -> None:
        with points.around("blob"):
            put(self, name, parts)

    FolderBlobs.put = armed_put
    return ArmedBuffer
