"""Where a run's engines listen and the keys that open them."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass, field

from slime_rl.errors import EngineError

NUM_PORTS_TRIED = 3
PORT_TAKEN = "address already in use"


@dataclass(frozen=True, slots=True)
class Keys:
    """The two keys of a run: `api` opens generation, `admin` opens updates of weights and pauses."""

    api: str = field(repr=False)
    admin: str = field(repr=False)

    @classmethod
    def draw(cls) -> Keys:
        """New random keys."""
        return cls(secrets.token_urlsafe(32), secrets.token_urlsafe(32))


@dataclass(frozen=True, slots=True)
class Address:
    """An engine or a router: the name that errors use, the base URL without a final slash, and the keys."""

    name: str
    url: str
    keys: Keys = field(repr=False)


def free_ports(num_ports: int, host: str = "127.0.0.1") -> list[int]:
    """Different ports that are free; another process may take one before it is used, so see `on_free_ports`."""
    with ExitStack() as probes:
        sockets = [probes.enter_context(socket.socket()) for _ in range(num_ports)]
        for probe in sockets:
            probe.bind((host, 0))
        return [probe.getsockname()[1] for probe in sockets]


def free_port(host: str = "127.0.0.1") -> int:
    """One port that the kernel finds free."""
    return free_ports(1, host)[0]


async def on_free_ports(start: Callable[[], Awaitable[Address]]) -> Address:
    """What `start` returns, which finds ports and starts a server on them.

    It is tried NUM_PORTS_TRIED times in all while it raises an EngineError that says that a port was taken meanwhile.
    """
    for _ in range(NUM_PORTS_TRIED - 1):
        try:
            return await start()
        except EngineError as error:
            if PORT_TAKEN not in str(error).lower():
                raise
    return await start()
