"""One SGLang server in a subprocess: started, probed, ended."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

from slime_rl.config import ModelConfig, RolloutConfig
from slime_rl.errors import EngineError
from slime_rl.rollout.address import Address, Keys, free_port, on_free_ports
from slime_rl.rollout.arguments import deterministic_arguments, server_arguments, server_environment
from slime_rl.rollout.engine_http import EngineHttp
from slime_rl.rollout.server_process import ServerProcess
from slime_rl.types import Version

GRACE_S = 0.0
HEALTH_POLL_S = 0.1
PROBE_TIMEOUT_S = 30.0


class Engine:
    """An SGLang server of this run; its log is `engine-INDEX.log` in the log folder.

    One that is `deterministic` samples by the seeds of its requests.
    """

    def __init__(
        self,
        index: int,
        *,
        model: ModelConfig,
        rollout: RolloutConfig,
        log_folder: Path,
        keys: Keys,
        seed: int,
        deterministic: bool = False,
    ) -> None:
        self.name = f"engine {index}"
        self._model = model
        self._rollout = rollout
        self._log_path = log_folder / f"engine-{index}.log"
        self._keys = keys
        self._seed = seed + index
        self._deterministic = deterministic
        self._process: ServerProcess | None = None
        self._address: Address | None = None

    @property
    def address(self) -> Address:
        """Where the started engine listens."""
        assert self._address is not None, f"{self.name} was not started"
        return self._address

    @property
    def process(self) -> ServerProcess:
        """The running server."""
        assert self._process is not None, f"{self.name} was not started"
        return self._process

    async def start(self, version: Version) -> Address:
        """Start the server and return its address once it answers; the weights of the model folder count as `version`.

        Raises EngineError with the end of its log if it dies, or is not ready within `rollout.start_timeout_s`.
        """
        return await on_free_ports(lambda: self._start(version))

    async def check(self) -> None:
        """Raise EngineError unless the server runs and generates a token; not to be asked while it is paused."""
        self.process.check_running()
        async with EngineHttp(self.address, timeout_s=PROBE_TIMEOUT_S) as http:
            await http.check_generating()

    def stop(self) -> None:
        """End the server with all of its processes; an engine that does not run is left as it is."""
        if self._process is not None:
            self._process.stop()
            self._process = None

    async def _start(self, version: Version) -> Address:
        port = free_port()
        self._address = Address(self.name, f"http://127.0.0.1:{port}", self._keys)
        self._process = ServerProcess(
            [sys.executable, "-m", "slime_rl.rollout.serve"],
            name=self.name,
            arguments=self._arguments(port, version),
            environment=server_environment(self._rollout.sglang, deterministic=self._deterministic),
            log_path=self._log_path,
            grace_s=GRACE_S,
        )
        try:
            await self._wait_ready()
        except BaseException:
            self.stop()
            raise
        return self._address

    def _arguments(self, port: int, version: Version) -> dict[str, Any]:
        arguments = server_arguments(
            self._model, self._rollout, port=port, keys=self._keys, seed=self._seed, version=version
        )
        return arguments | deterministic_arguments(self._rollout.sglang) if self._deterministic else arguments

    async def _wait_ready(self) -> None:
        limit_s = self._rollout.start_timeout_s
        try:
            async with asyncio.timeout(limit_s), EngineHttp(self.address, timeout_s=limit_s) as http:
                while not await http.is_ready():
                    self.process.check_running()
                    await asyncio.sleep(HEALTH_POLL_S)
        except TimeoutError:
            self.process.show_stacks()
            raise EngineError(
                f"{self.name} was not ready within {limit_s:.0f} s (rollout.start_timeout_s); {self.process.log_tail()}"
            ) from None
