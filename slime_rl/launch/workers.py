"""The rollout workers of a run, started together and ended together."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from slime_rl.actors.crew import Crew, Member
from slime_rl.actors.worker import Surroundings, WorkerActor
from slime_rl.config import Config
from slime_rl.errors import EngineError
from slime_rl.rollout.evaluation import Evaluation
from slime_rl.types import Group

STOP_TIMEOUT_S = 10.0


class Workers:
    """Used as `async with Workers(...) as workers`, which returns once all of them are ready."""

    def __init__(self, config: Config, around: Surroundings, *, num_workers: int) -> None:
        self._config = config
        self._crew = Crew(
            [
                Member(
                    WorkerActor.remote(index, config, around),
                    f"rollout worker {index}",
                    around.logs / f"worker-{index}.log",
                    EngineError,
                )
                for index in range(num_workers)
            ]
        )

    async def __aenter__(self) -> Self:
        try:
            await self._crew.appear()
            await self._crew.call("start", doing="as it started", timeout_s=self._config.rollout.start_timeout_s)
        except BaseException:
            await self._crew.end(timeout_s=STOP_TIMEOUT_S)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._crew.end(timeout_s=STOP_TIMEOUT_S)

    async def produce(self) -> None:
        """Fill slots until no prompt remains."""
        await self._crew.call("produce", doing="as it generated")

    async def evaluate(self) -> Evaluation:
        """The held-out set's scores, by the first worker, on the weights that the engines serve now."""
        evaluation = self._config.evaluation
        assert evaluation is not None, "the configuration has no evaluation section"
        doing = "as it evaluated (evaluation.timeout_s)"
        return await self._crew.members[0].call("evaluate", doing=doing, timeout_s=evaluation.timeout_s)

    async def canary(self) -> Group:
        """One sample of the first prompt by the weights that the engines serve now, to compare log-probs by."""
        limit_s = self._config.rollout.request_timeout_s
        return await self._crew.members[0].call("canary", doing="as it sampled the canary prompt", timeout_s=limit_s)
