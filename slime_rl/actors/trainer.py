"""Ray actors that hold the trainer's ranks, and the trainer that the loop sees: all of them as one."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ray

from slime_rl.actors.crew import Crew, Member, write_output_to
from slime_rl.actors.supervised import WorkedExamples
from slime_rl.buffer.dataset import Selection, load_held_out, load_selected
from slime_rl.buffer.endpoint import Endpoint
from slime_rl.buffer.reader import GroupReader
from slime_rl.config import Config
from slime_rl.errors import TrainerError
from slime_rl.journal.checkpoints import Checkpoint, Checkpoints
from slime_rl.rollout.address import Address
from slime_rl.trainer.packing import share_groups
from slime_rl.types import Assignment, Group, StepReport, Version

STOP_TIMEOUT_S = 5.0

ReadGroups = Callable[[Sequence[int]], list[Group]]
OpenReader = Callable[[], ReadGroups]
"""Makes, inside the rank's process, what reads groups by id."""


def read_worked_examples(config: Config, selection: Selection) -> ReadGroups:
    """A reader of the training data's rows as groups."""
    return WorkedExamples(config, load_selected(config.data, selection), selection.sources)


def read_from_buffer(endpoint: Endpoint, run_id: str) -> ReadGroups:
    """A reader of a run's groups, connected from the process that calls this."""
    return GroupReader(endpoint, run_id).read


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

    def load(self, master: tuple[str, int], open_reader: OpenReader, start: Checkpoint | None) -> Version:
        """Join the other ranks and load the weights, those of a checkpoint if the run goes on from one."""
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
        return self._megatron.load(start)

    def step(self, group_ids: Sequence[int], step: int) -> StepReport:
        """Train this rank's share of a step."""
        return self._megatron.step(group_ids, step)

    def probability(self) -> float:
        """How likely the model is to write the answers of the held-out set, on average; all ranks share its rows."""
        evaluation = self._config.evaluation
        assert evaluation is not None, "the configuration has no evaluation section"
        if self._held_out is None:
            self._held_out = WorkedExamples(self._config, load_held_out(evaluation, self._config.data.columns))
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

    def compare(self, group: Group) -> tuple[float, float]:
        """Mean and maximum difference from the engine's log-probs of `group`; the other ranks run idle."""
        return self._megatron.compare([group] if self._rank == 0 else [])

    def save(self, checkpoint: Checkpoint) -> None:
        """Take part in writing a checkpoint's files."""
        self._megatron.save(checkpoint)

    def stop(self) -> None:
        """Nothing waits in a rank that has no call."""


class TrainerGroup:
    """Every rank, seen as one; implements interfaces.Trainer. It begins at the checkpoint `start`, if there is one."""

    def __init__(
        self,
        config: Config,
        *,
        logs: Path,
        open_reader: OpenReader,
        engines: Sequence[Address],
        checkpoints: Checkpoints,
        start: Checkpoint | None,
        published: Path,
    ) -> None:
        self._config = config.trainer
        self._open_reader = open_reader
        self._engines = engines
        self._checkpoints = checkpoints
        self._start = start
        self._published = published
        self._crew = Crew([_start_rank(rank, config, logs) for rank in range(config.trainer.data_parallel)])

    async def load(self) -> Version:
        """The version of the weights that every rank has loaded."""
        limit_s = self._config.start_timeout_s
        await self._crew.appear()
        master = await self._crew.members[0].call("find_port", doing="as it started", timeout_s=limit_s)
        loading = master, self._open_reader, self._start
        doing = "as it loaded (trainer.start_timeout_s)"
        versions = await self._crew.call("load", *loading, doing=doing, timeout_s=limit_s)
        return versions[0]

    async def step(self, assignment: Assignment) -> StepReport:
        """Train a step, each rank its share of the groups."""
        shares = [(share, assignment.step) for share in share_groups(assignment, len(self._crew.members))]
        doing = f"in step {assignment.step}"
        reports = await self._crew.share("step", shares, doing=doing, timeout_s=self._config.step_timeout_s)
        return reports[0]

    async def probability(self) -> float:
        """How likely the model is to write the answers of the held-out set, on average."""
        return (await self._all("probability", doing="as it scored the held-out set"))[0]

    async def compare(self, group: Group) -> tuple[float, float]:
        """Mean and maximum of the absolute difference between the engine's log-probs of `group` and the trainer's."""
        return (await self._all("compare", group, doing="as it compared log-probs"))[0]

    async def publish(self, version: Version) -> None:
        """Bring a version to the engines."""
        await self._all("publish", version, self._engines, self._published, doing=f"as it published version {version}")

    async def save(self, version: Version, snapshot: bytes | None = None) -> None:
        """Write a checkpoint of a version; one that is there already stays as it is."""
        with self._checkpoints.write(version, snapshot) as checkpoint:
            if checkpoint is not None:
                await self._all("save", checkpoint, doing=f"as it saved version {version}")

    async def close(self) -> None:
        """End every rank."""
        await self._crew.end(timeout_s=STOP_TIMEOUT_S)

    async def _all(self, method: str, *arguments: Any, doing: str) -> list[Any]:
        return await self._crew.call(method, *arguments, doing=doing, timeout_s=self._config.step_timeout_s)


def _start_rank(rank: int, config: Config, logs: Path) -> Member:
    log = logs / f"trainer-{rank}.log"
    return Member(TrainerActor.remote(rank, config, log), f"trainer rank {rank}", log, TrainerError)
