"""The router before the engines: one address that spreads requests over them."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from slime_rl.config import RolloutConfig
from slime_rl.errors import EngineError
from slime_rl.rollout.address import Address, Keys, free_ports, on_free_ports
from slime_rl.rollout.engine_http import EngineHttp
from slime_rl.rollout.server_process import ServerProcess

NAME = "router"
START_TIMEOUT_S = 60.0
HEALTH_POLL_S = 0.05
GRACE_S = 0.0


class Router:
    """The `sglang-router` of this run in a subprocess; its log is `router.log` in the log folder.

    It neither retries nor puts an engine aside: a dead engine is an error of the run, with that engine as its cause.
    `find_ports` finds so many ports to listen on.
    """

    def __init__(
        self,
        *,
        rollout: RolloutConfig,
        log_folder: Path,
        keys: Keys,
        find_ports: Callable[[int], list[int]] = free_ports,
    ) -> None:
        self._rollout = rollout
        self._log_path = log_folder / "router.log"
        self._keys = keys
        self._find_ports = find_ports
        self._process: ServerProcess | None = None

    @property
    def process(self) -> ServerProcess:
        """The running router."""
        assert self._process is not None, "the router was not started"
        return self._process

    async def start(self, engines: Sequence[Address]) -> Address:
        """Start the router before engines that are ready, and return its address once it answers for them.

        Raises EngineError with the end of its log if it dies or does not answer.
        """
        return await on_free_ports(lambda: self._start(engines))

    def stop(self) -> None:
        """End the router; one that does not run is left as it is."""
        if self._process is not None:
            self._process.stop()
            self._process = None

    async def _start(self, engines: Sequence[Address]) -> Address:
        port, metrics_port = self._find_ports(2)
        address = Address(NAME, f"http://127.0.0.1:{port}", self._keys)
        self._process = ServerProcess(
            [sys.executable, "-m", "slime_rl.rollout.serve_router"],
            name=NAME,
            arguments=self._arguments(engines, port=port, metrics_port=metrics_port),
            environment=os.environ,
            log_path=self._log_path,
            grace_s=GRACE_S,
        )
        try:
            await self._wait_ready(address, num_engines=len(engines))
        except BaseException:
            self.stop()
            raise
        return address

    def _arguments(self, engines: Sequence[Address], *, port: int, metrics_port: int) -> dict[str, Any]:
        return {
            "worker_urls": [engine.url for engine in engines],
            "host": "127.0.0.1",
            "port": port,
            "policy": self._rollout.router_policy,
            "api_key": self._keys.api,
            "request_timeout_secs": int(self._rollout.request_timeout_s) + 1,
            "prometheus_host": "127.0.0.1",
            "prometheus_port": metrics_port,
            "worker_startup_check_interval": 1,
            "disable_retries": True,
            "disable_circuit_breaker": True,
            "log_level": "warn",
        }

    async def _wait_ready(self, address: Address, *, num_engines: int) -> None:
        try:
            async with asyncio.timeout(START_TIMEOUT_S), EngineHttp(address, timeout_s=START_TIMEOUT_S) as http:
                while not (await http.is_ready() and await http.num_healthy_workers() == num_engines):
                    self.process.check_running()
                    await asyncio.sleep(HEALTH_POLL_S)
        except TimeoutError:
            tail = self.process.log_tail()
            limit = f"within {START_TIMEOUT_S:.0f} s"
            raise EngineError(f"the router was not ready for {num_engines} engines {limit}; {tail}") from None
