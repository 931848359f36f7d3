"""Where a run's engines listen and the keys that open them."""

from __future__ import annotations

import secrets
import socket
from dataclasses import dataclass, field


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


def free_port(host: str = "127.0.0.1") -> int:
    """A port that the kernel finds free; another process may take it before it is used, so the user must retry."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return probe.getsockname()[1]
