"""One process of the trainer: its share of every step, the weights, and how they leave."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor

from slime_rl.config import Config
from slime_rl.errors import TrainerError
from slime_rl.journal.checkpoints import Checkpoint
from slime_rl.trainer import checkpoint, distributed
from slime_rl.trainer.gradient import GradientPass
from slime_rl.trainer.hub_folder import write_hub_files
from slime_rl.trainer.model import HubModel, PolicyModel
from slime_rl.trainer.optimizer import Optimizer, data_parallel
from slime_rl.trainer.packing import MicroBatch, TrainedSample, pack
from slime_rl.trainer.report import Totals
from slime_rl.trainer.samples import (
    group_totals,
    over_std,
    reduced,
    squares,
    trained_samples,
    without_stale,
    without_truncated,
)
from slime_rl.types import Group, StepReport, Version

log = logging.getLogger(__name__)

ReadGroups = Callable[[Sequence[int]], list[Group]]


class MegatronRank:
    """A data-parallel rank. All ranks make the same calls in the same order: each one waits for the others.

    `read_groups` fetches groups by id; it is called once a step, with this rank's own share.
    """

    def __init__(
        self,
        config: Config,
        *,
        rank: int,
        world_size: int,
        master_addr: str,
        master_port: int,
        read_groups: ReadGroups,
    ) -> None:
        self._config = config
        self._read_groups = read_groups
        self._rank = rank
        if config.run.deterministic:
            distributed.use_deterministic_algorithms()
        distributed.join(
            config.trainer, rank=rank, world_size=world_size, master_addr=master_addr, master_port=master_port
        )
        distributed.seed(config.run.seed)

    def load(self, start: Checkpoint | None = None) -> Version:
        """Build the model, the optimiser and the schedule, and load the weights; they are version 0.

        With `start`, everything goes on from that checkpoint instead.

        Raises ModelError for a folder that cannot be built or lacks a weight, TrainerError for a checkpoint of another
        model.
        """
        trainer = self._config.trainer
        self._hub = HubModel(self._config.model, trainer.megatron)
        self._policy: PolicyModel = self._hub.build()
        self._hub.load(self._policy)
        model = data_parallel(self._policy, trainer.megatron)
        self._optimizer = Optimizer(model, trainer, num_steps=self._config.loop.steps)
        self._gradient = GradientPass(model, self._policy, self._config.objective)
        self._version = Version(0)
        if start is not None:
            checkpoint.load(start.trainer, self._policy, self._optimizer)
            self._version = start.version
        log.info("model in %s, gradients and master weights in float32", self._hub.dtype)
        return self._version

    def step(self, group_ids: Sequence[int], step: int) -> StepReport:
        """Train the step that starts from version `step`, of which this rank reads `group_ids`, maybe none.

        The report is the same on all ranks, but for the seconds, which are this rank's own. A step without a trained
        token anywhere leaves the weights alone, is counted as skipped, and is a version all the same.

        Raises TrainerError, before the optimiser has seen anything, for a sample that cannot be trained and for a loss
        or gradient that is not finite.
        """
        if step != self._version:
            raise TrainerError(f"step {step} starts from version {step}, but the trainer is at {self._version}")
        clock = _Clock()
        with clock.phase("read"):
            groups = self._read_groups(group_ids)
        with _named(f"step {step}, groups {_list(group_ids) or 'of other ranks'}"):
            totals = self._accumulate(groups, clock)
            with clock.phase("optimiser"):
                self._update(totals)
        self._version = Version(step + 1)
        return StepReport(
            version=self._version,
            sums=totals.sums,
            counts=totals.counts,
            maxima=totals.maxima,
            seconds=clock.seconds,
        )

    def probability(self, groups: Sequence[Group]) -> float:
        """The mean probability, over all ranks' samples, that the model writes what is masked in; trains nothing.

        A rank may have no group; one of them has to.
        """
        self._optimizer.settle()
        totals = self._over_ranks(self._gradient.probability(self._pack(groups)))
        return totals.sums["probability"] / totals.counts["probability"]

    def compare(self, groups: Sequence[Group]) -> tuple[float, float]:
        """Mean and maximum, over all ranks, of |log-prob of the engine - log-prob of the current weights|."""
        self._optimizer.settle()
        totals = self._over_ranks(self._gradient.compare(self._pack_sampled(groups)))
        mean = totals.sums["logprob_abs_diff"] / totals.counts["logprob_abs_diff"]
        return mean, totals.maxima["logprob_abs_diff"]

    def export(self) -> Iterator[tuple[str, Tensor]]:
        """The weights in the model's type under their Hugging Face checkpoint names, in one order on every rank.

        They share memory with the model: copy what has to outlive the next step.
        """
        self._optimizer.settle()
        return self._hub.export(self._policy)

    def save(self, target: Checkpoint) -> None:
        """Write this rank's part of a checkpoint; returns on each rank once everything is written.

        Its folders are there, and seen by all ranks.
        """
        weights = self.export()
        if self._rank == 0:
            write_hub_files(target.path, weights, like=self._config.model.path, dtype=self._hub.dtype)
        else:
            for _ in weights:
                pass
        checkpoint.save(target.trainer, self._policy, self._optimizer)

    def close(self) -> None:
        """Leave the process group."""
        distributed.leave()

    def _accumulate(self, groups: Sequence[Group], clock: _Clock) -> Totals:
        """Gradient of the step, and its totals over all ranks. Raises only after the last collective."""
        with clock.phase("pack"):
            batches = self._pack(groups)
            totals = group_totals(groups)
        with clock.phase("forward_backward"):
            self._optimizer.zero_grad()
            measured, unsound = self._gradient.run(batches)
            totals.merge(measured)
            totals = self._over_ranks(totals)
        if not math.isfinite(loss := totals.sums["loss"]):
            raise TrainerError(f"the loss is {loss} in groups {_list(unsound) or 'of other ranks'}")
        return totals

    def _pack(self, groups: Sequence[Group]) -> list[MicroBatch]:
        objective = self._config.objective
        samples = trained_samples(groups, objective)
        if objective.estimator == "reinforce_pp":
            totals = Totals()
            totals.add("squares", *squares(samples))
            totals = self._over_ranks(totals)
            samples = over_std(samples, total=totals.sums["squares"], count=totals.counts["squares"])
        if self._config.loop.on_straggler == "mask":
            samples = without_stale(samples, oldest=Version(self._version - self._config.loop.max_lag))
        if objective.mask_truncated:
            samples = without_truncated(samples)
        return pack(
            reduced(samples, objective),
            max_tokens=self._config.trainer.max_tokens_per_microbatch,
            version=self._version,
        )

    def _pack_sampled(self, groups: Sequence[Group]) -> list[MicroBatch]:
        """Micro-batches of samples that are looked at and not trained: they need no reward."""
        samples = [TrainedSample(sample=s, group=group.id, advantage=0.0) for group in groups for s in group.samples]
        return pack(samples, max_tokens=self._config.trainer.max_tokens_per_microbatch, version=self._version)

    def _over_ranks(self, totals: Totals) -> Totals:
        return totals.over_ranks(distributed.data_parallel_group(), self._policy.head.device)

    def _update(self, totals: Totals) -> None:
        trained = totals.counts["loss"] > 0
        totals.add("num_tokens", 0, 1)
        learning_rate = self._optimizer.learning_rate(self._version)
        totals.add("lr", learning_rate, 1)
        totals.add("skipped", 0.0 if trained else 1.0, 1)
        if trained:
            grad_norm = self._optimizer.grad_norm()
            totals.add("grad_norm", grad_norm, 1)
            self._optimizer.update(grad_norm)
        else:
            totals.add("grad_norm", 0.0, 0)


def _list(ids: Sequence[int]) -> str:
    return ", ".join(map(str, sorted(set(ids))))


class _Clock:
    """Seconds spent in each phase of a step."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[name] = time.perf_counter() - start


@contextmanager
def _named(what: str) -> Iterator[None]:
    try:
        yield
    except TrainerError as error:
        raise TrainerError(f"{what}: {error}") from error
