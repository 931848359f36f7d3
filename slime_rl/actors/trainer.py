"""Ray actors that hold the trainer's ranks, and the trainer that the loop sees: all of them as one."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray

from slime_rl.actors.calls import Callee, end, result, write_output_to
from slime_rl.actors.supervised import WorkedExamples
from slime_rl.buffer.reader import GroupReader
from slime_rl.config import Config
from slime_rl.errors import TrainerError
from slime_rl.rollout.address import Address
from slime_rl.trainer.packing import share_groups
from slime_rl.types import Assignment, Group, StepReport, Version

ReadGroups = Callable[[Sequence[int]], list[Group]]
OpenReader = Callable[[], ReadGroups]
"""Makes, inside the rank's process, what reads groups by id."""


def read_worked_examples(config: Config) -> ReadGroups:
    """A reader of the training data's rows as groups."""
    return WorkedExamples(config, config.data.path, field="data.path")


def read_from_buffer(url: str, run_id: str) -> ReadGroups:
    """A reader of a run's groups, connected from the process that calls this."""
    return GroupReader(url, run_id).read


@ray.remote(num_cpus=0, max_restarts=0)
class TrainerActor:
    """One rank. torch and Megatron are imported here and nowhere else in the actors."""

    def __init__(self, rank: int, config: Config, log: Path) -> None:
        write_output_to(log)
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
        self._rank, self._config = rank, config
        self._held_out: WorkedExamples | None = None

    def find_port(self) -> tuple[str, int]:
        """This node's address, and a port of it for the ranks to meet at."""
        host = ray.util.get_node_ip_address()
        with socket.create_server((host, 0)) as probe:
            return host, probe.getsockname()[1]

    def load(self, master: tuple[str, int], open_reader: OpenReader) -> Version:
        """Join the other ranks and load the weights."""
        from slime_rl.trainer.rank import MegatronRank

        host, port = master
        self._megatron = MegatronRank(
            self._config,
            rank=self._rank,
            world_size=self._config.trainer.data_parallel,
            master_addr=host,
            master_port=port,
            read_groups=open_reader(),
        )
        return self._megatron.load()

    def step(self, group_ids: Sequence[int], step: int) -> StepReport:
        """Train this rank's share of a step."""
        return self._megatron.step(group_ids, step)

    def probability(self) -> float:
        """How likely the model is to write the answers of the held-out set, on average; all ranks share its rows."""
        evaluation = self._config.evaluation
        assert evaluation is not None, "the configuration has no evaluation section"
        if self._held_out is None:
            self._held_out = WorkedExamples(self._config, evaluation.path, field="evaluation.path")
        num_ranks = self._config.trainer.data_parallel
        return self._megatron.probability(self._held_out.share(self._rank, num_ranks, evaluation.max_prompts))

    def publish(self, version: Version, engines: Sequence[Address], folder: Path) -> None:
        """Take part in gathering the weights; rank 0 brings them to the engines."""
        weights = list(self._megatron.export())
        if self._rank == 0 and engines:
            from slime_rl.rollout.weights.publisher import Publisher

            rollout = self._config.rollout
            publisher = Publisher(
                engines, transport=rollout.transport, folder=folder, timeout_s=rollout.request_timeout_s
            )
            asyncio.run(publisher.publish(version, weights))

    def save(self, folder: Path) -> None:
        """Write the weights as a Hugging Face folder."""
        self._megatron.save_hf(folder)


@dataclass(frozen=True, slots=True)
class _Rank:
    actor: Any
    callee: Callee


class TrainerGroup:
    """Every rank, seen as one; implements interfaces.Trainer.

    `checkpoint` says where a version is saved; `prune` deletes older ones after that.
    """

    def __init__(
        self,
        config: Config,
        *,
        logs: Path,
        open_reader: OpenReader,
        engines: Sequence[Address],
        checkpoint: Callable[[Version], Path],
        prune: Callable[[], None],
        published: Path,
    ) -> None:
        self._config = config.trainer
        self._open_reader = open_reader
        self._engines = engines
        self._checkpoint = checkpoint
        self._prune = prune
        self._published = published
        self._ranks = [_start_rank(rank, config, logs) for rank in range(config.trainer.data_parallel)]

    async def load(self) -> Version:
        """The version of the weights that every rank has loaded."""
        limit_s = self._config.start_timeout_s
        first = self._ranks[0]
        master = await result(first.actor.find_port.remote(), of=first.callee, doing="as it started", timeout_s=limit_s)
        versions = await self._all("load", master, self._open_reader, doing="as it loaded", timeout_s=limit_s)
        return versions[0]

    async def step(self, assignment: Assignment) -> StepReport:
        """Train a step, each rank its share of the groups."""
        shares = share_groups(assignment, len(self._ranks))
        calls = [r.actor.step.remote(share, assignment.step) for r, share in zip(self._ranks, shares, strict=True)]
        reports = await self._wait(calls, doing=f"in step {assignment.step}", timeout_s=self._config.step_timeout_s)
        return reports[0]

    async def probability(self) -> float:
        """How likely the model is to write the answers of the held-out set, on average."""
        doing = "as it scored the held-out set"
        return (await self._all("probability", doing=doing, timeout_s=self._config.step_timeout_s))[0]

    async def publish(self, version: Version) -> None:
        """Bring a version to the engines."""
        doing = f"as it published version {version}"
        limit_s = self._config.step_timeout_s
        await self._all("publish", version, self._engines, self._published, doing=doing, timeout_s=limit_s)

    async def save(self, version: Version) -> None:
        """Write a version as a Hugging Face folder; one that is there already stays as it is."""
        folder = self._checkpoint(version)
        if not folder.exists():
            doing = f"as it saved version {version}"
            await self._all("save", folder, doing=doing, timeout_s=self._config.step_timeout_s)
            self._prune()

    def close(self) -> None:
        """End every rank."""
        end(*(rank.actor for rank in self._ranks))

    async def _all(self, method: str, *arguments: Any, doing: str, timeout_s: float) -> list[Any]:
        calls = [getattr(rank.actor, method).remote(*arguments) for rank in self._ranks]
        return await self._wait(calls, doing=doing, timeout_s=timeout_s)

    async def _wait(self, calls: Sequence[Any], *, doing: str, timeout_s: float) -> list[Any]:
        waits = [
            result(call, of=rank.callee, doing=doing, timeout_s=timeout_s)
            for call, rank in zip(calls, self._ranks, strict=True)
        ]
        return await asyncio.gather(*waits)


def _start_rank(rank: int, config: Config, logs: Path) -> _Rank:
    log = logs / f"trainer-{rank}.log"
    return _Rank(TrainerActor.remote(rank, config, log), Callee(f"trainer rank {rank}", log, TrainerError))
