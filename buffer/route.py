"""The way to the node of a cluster that has a run's keys; a server alone is a cluster of one node.

A run's keys have one hash tag, so one node has them all, and a client of one server suffices that goes where it is
sent. The library's client of a whole cluster would go too far: while a slot moves from node to node, key by key, it
follows the redirection of a single key (ASK), and a function that ran there would take the run's other keys for absent.
Here such a call waits until the slot has moved.
"""

from __future__ import annotations

from typing import Any, cast

import redis
import redis.asyncio
from redis.exceptions import AskError, ClusterDownError, MovedError, ResponseError, TryAgainError

ASTRAY = AskError, ClusterDownError, TryAgainError
"""What the wrong node answers (MovedError is an AskError), or a cluster that is being mended or moved."""
Address = tuple[str, int]


class Route:
    """Where a client's commands go: to the node of its URL, until a cluster sends it to another.

    Each new connection asks for the other nodes of the cluster, so that the run is found again when its node is lost.
    """

    def __init__(self) -> None:
        self.node: Address | None = None
        self._nodes: list[Address] = []
        self._pools: dict[Address, Any] = {}
        self._client: Any = None

    def lead(self, client: redis.Redis | redis.asyncio.Redis) -> None:
        """Begin at the node that a client was made for."""
        options = client.connection_pool.connection_kwargs
        self._client = client
        if "path" not in options:
            self.node = options.get("host", "localhost"), options.get("port", 6379)
            self._pools[self.node] = client.connection_pool

    def follow(self, fault: redis.RedisError, asked: Address | None) -> None:
        """Go where the fault of a call to the node `asked` sends the client, unless it has gone on since.

        Raises the fault where it sends a client away that came by a socket.
        """
        if self.node is None and isinstance(fault, MovedError):
            raise fault
        if self.node is None or self.node != asked:
            return
        if isinstance(fault, MovedError):
            self._go(fault.host or self.node[0], fault.port)
        elif isinstance(fault, redis.ConnectionError | redis.TimeoutError) and len(self._nodes) > 1:
            place = self._nodes.index(self.node) if self.node in self._nodes else -1
            self._go(*self._nodes[(place + 1) % len(self._nodes)])

    def _go(self, host: str, port: int) -> None:
        self.node = host, port
        if self.node not in self._pools:
            first = next(iter(self._pools.values()))
            options = first.connection_kwargs | {"host": host, "port": port}
            self._pools[self.node] = type(first)(connection_class=first.connection_class, **options)
        self._client.connection_pool = self._pools[self.node]

    def others(self) -> list[Any]:
        """The connection pools besides the one in use."""
        return [pool for node, pool in self._pools.items() if node != self.node]

    async def meet(self, connection: Any) -> None:
        """Make a new connection ready and ask it who its neighbours are."""
        await connection.on_connect()
        await connection.send_command("CLUSTER", "SLOTS")
        try:
            self._learn(await connection.read_response(), connection)
        except ResponseError:  # no cluster, or a user who may not ask
            return

    def meet_blocking(self, connection: Any) -> None:
        """What `meet` does, for a client that blocks."""
        connection.on_connect()
        connection.send_command("CLUSTER", "SLOTS")
        try:
            self._learn(connection.read_response(), connection)
        except ResponseError:
            return

    def _learn(self, slots: list[list[Any]], connection: Any) -> None:
        """Know the nodes of ranges of slots: [first, last, [host, port, ...] ...]; a host may be left out."""
        here = getattr(connection, "host", "")
        found = {(_name(node[0]) or here, cast(int, node[1])) for _, _, *nodes in slots for node in nodes}
        self._nodes = sorted(found)


def _name(host: bytes | str | None) -> str:
    """The name of a host, empty where the node does not know its own."""
    name = host.decode() if isinstance(host, bytes) else host or ""
    return "" if name == "?" else name
