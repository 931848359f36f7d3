"""Where the buffer's server is, and how it is spoken to."""

from __future__ import annotations

from dataclasses import dataclass, field

from slime_rl.config import REDIS_SCHEMES, BufferConfig, without_credentials
from slime_rl.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server's URL with the section of the configuration that says how to reach it; shown without credentials.

    Raises ConfigError for a URL of another kind.
    """

    url: str = field(repr=False)
    config: BufferConfig = field(default=BufferConfig(), repr=False)

    def __post_init__(self) -> None:
        if not self.url.startswith(REDIS_SCHEMES):
            raise ConfigError("buffer.url", f"must be one of {', '.join(REDIS_SCHEMES)}", str(self))

    def __str__(self) -> str:
        return without_credentials(self.url)

    @property
    def tls(self) -> dict[str, str]:
        """The files of an encrypted connection, as the client takes them."""
        files = {"ssl_ca_certs": self.config.tls_ca, "ssl_certfile": self.config.tls_cert}
        files["ssl_keyfile"] = self.config.tls_key
        return {name: path for name, path in files.items() if path is not None}


def endpoint_at(where: str | Endpoint) -> Endpoint:
    """A URL alone stands for a server that is spoken to by the defaults."""
    return where if isinstance(where, Endpoint) else Endpoint(where)
