"""The gradient of a step: forward and backward over the micro-batches of a rank, summed over all ranks.

Shape letters: S samples of a micro-batch, T tokens of it, M trained tokens of it, H hidden size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
import torch
from megatron.core.distributed import DistributedDataParallel
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.pipeline_parallel import get_forward_backward_func
from numpy.typing import NDArray
from torch import Tensor

from slime_rl.config import ObjectiveConfig
from slime_rl.trainer.head import token_logprobs
from slime_rl.trainer.model import PolicyModel
from slime_rl.trainer.objective import correction_weights, policy_losses, supervised_loss
from slime_rl.trainer.packing import MicroBatch
from slime_rl.trainer.report import Totals

Loss = tuple[Tensor, Tensor, dict[str, Tensor]]
"""The summed loss of a micro-batch, how many tokens it sums, and what else was measured, as Megatron wants it."""


class GradientPass:
    """Fills the gradient buffers of a model with the mean over every trained token of a step.

    Megatron adds up the gradients of the micro-batches and the ranks, then divides once by the number of trained tokens
    they hold together.
    """

    def __init__(self, model: DistributedDataParallel, policy: PolicyModel, objective: ObjectiveConfig) -> None:
        self._model = model
        self._policy = policy
        self._objective = objective
        self._device = policy.head.device

    def run(self, batches: Sequence[MicroBatch]) -> tuple[Totals, list[int]]:
        """Run all micro-batches of this rank; every rank takes part.

        Returns the totals of this rank, and the groups of those micro-batches whose loss is not finite.
        """
        return _totals(batches, self._pass(batches, self._loss, forward_only=False))

    @torch.no_grad()
    def probability(self, batches: Sequence[MicroBatch]) -> Totals:
        """How likely the model is to write each sample's trained tokens as they stand; no gradient, no update.

        `probability` sums it over samples: for worked examples it is the expected exact match at temperature 1.
        """
        totals = Totals()
        for values in self._pass(batches, self._probability, forward_only=True):
            totals.add("probability", *values["probability"].tolist())
        return totals

    @torch.no_grad()
    def compare(self, batches: Sequence[MicroBatch]) -> Totals:
        """The absolute difference between the engine's log-probs and the model's, of every trained token."""
        totals = Totals()
        for batch, values in zip(batches, self._pass(batches, self._difference, forward_only=True), strict=True):
            total, top = values["difference"].tolist()
            totals.add("logprob_abs_diff", total, len(batch.rows))
            totals.raise_to("logprob_abs_diff", top)
        return totals

    def _pass(
        self, batches: Sequence[MicroBatch], loss: Callable[[MicroBatch, Tensor], Loss], *, forward_only: bool
    ) -> list[dict[str, Tensor]]:
        return get_forward_backward_func()(
            forward_step_func=partial(self._forward, loss),
            data_iterator=iter(batches),
            model=self._model,
            num_microbatches=len(batches),
            seq_length=0,
            micro_batch_size=1,
            forward_only=forward_only,
        )

    def _forward(
        self,
        loss: Callable[[MicroBatch, Tensor], Loss],
        batches: Iterator[MicroBatch],
        model: DistributedDataParallel,
    ) -> tuple[Tensor, Callable[[Tensor], Loss]]:
        batch = next(batches)
        tokens = self._tensor(batch.tokens)[None]
        options = {"fp32_output": False} if self._policy.config.bf16 else {}
        hidden = model(tokens, tokens, None, packed_seq_params=_packed(batch.lengths, self._device), **options)
        return hidden, partial(loss, batch)

    def _logprobs(self, batch: MicroBatch, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """hidden [T, 1, H] -> log-prob and entropy of each trained token, [M] each."""
        return token_logprobs(
            hidden.squeeze(1).index_select(0, self._tensor(batch.rows)),
            self._policy.head,
            self._tensor(batch.targets),
            self._tensor(batch.temperatures),
            trains_entropy=self._objective.entropy_bonus > 0,
        )

    def _probability(self, batch: MicroBatch, hidden: Tensor) -> Loss:
        """hidden [T, 1, H] -> the summed probability of the samples, and how many there are."""
        logprobs, _ = self._logprobs(batch, hidden)
        by_sample = logprobs.new_zeros(len(batch.lengths)).index_add(0, self._tensor(batch.owners), logprobs)
        samples = by_sample[torch.unique(self._tensor(batch.owners))]
        total = torch.stack((samples.exp().sum(), samples.new_tensor(float(len(samples)))))
        return total[0], torch.tensor(len(batch.rows), dtype=torch.int), {"probability": total}

    def _difference(self, batch: MicroBatch, hidden: Tensor) -> Loss:
        logprobs, _ = self._logprobs(batch, hidden)
        difference = (logprobs - self._tensor(batch.behaviour)).abs()
        total = difference.sum()
        measured = torch.stack((total, difference.amax() if len(difference) else total))
        return total, torch.tensor(len(batch.rows), dtype=torch.int), {"difference": measured}

    def _loss(self, batch: MicroBatch, hidden: Tensor) -> Loss:
        """hidden [T, 1, H] -> the summed loss, how many tokens it sums, and what else is measured."""
        logprobs, entropy = self._logprobs(batch, hidden)
        if self._objective.loss == "sft":
            losses, measured = supervised_loss(logprobs), {}
        else:
            losses, measured = self._policy_loss(batch, logprobs)
        if self._objective.entropy_bonus > 0:
            losses = losses - self._objective.entropy_bonus * entropy
        loss = (losses * self._tensor(batch.weights)).sum()
        measured |= {"loss": loss.detach(), "entropy": entropy.detach().sum()}
        return loss, torch.tensor(batch.adds_to_n, dtype=torch.int), measured

    def _policy_loss(self, batch: MicroBatch, logprobs: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """logprobs [M] -> weighted loss [M]. One step is taken on a batch: the proximal policy is the current."""
        proximal, behaviour = logprobs.detach(), self._tensor(batch.behaviour)
        owners, advantages = self._tensor(batch.owners), self._tensor(batch.advantages)
        losses, clipped = policy_losses(self._objective, logprobs, proximal, advantages, owners)
        measured = {"clipped": clipped.sum()}
        weights = correction_weights(self._objective, proximal, behaviour, owners)
        if weights is not None:
            losses = losses * weights
            measured["correction_weight"] = weights.sum()
        fresh = (proximal - behaviour).abs()[self._tensor(batch.lags == 0)]
        measured["logprob_abs_diff"] = fresh.sum()
        measured["logprob_abs_diff_max"] = fresh.amax() if len(fresh) else fresh.sum()
        return losses, measured

    def _tensor(self, array: NDArray) -> Tensor:
        return torch.from_numpy(array).to(self._device, non_blocking=True)


def _packed(lengths: Sequence[int], device: torch.device) -> PackedSeqParams:
    bounds = torch.from_numpy(np.cumsum((0, *lengths), dtype=np.int32)).to(device)
    longest = max(lengths)
    return PackedSeqParams("thd", bounds, bounds, max_seqlen_q=longest, max_seqlen_kv=longest)


def _totals(batches: Sequence[MicroBatch], measured: Sequence[dict[str, Tensor]]) -> tuple[Totals, list[int]]:
    """Add up what the micro-batches measured, fetched from the device at once."""
    names = list(measured[0])
    table = torch.stack([torch.stack([values[name].double() for name in names]) for values in measured]).tolist()
    totals, unsound = Totals(), []
    for batch, row in zip(batches, table, strict=True):
        values = dict(zip(names, row, strict=True))
        if not math.isfinite(values["loss"]):
            unsound.extend(batch.groups)
        fresh = int((batch.lags == 0).sum())
        totals.raise_to("logprob_abs_diff", values.pop("logprob_abs_diff_max", 0.0))
        counts = {"logprob_abs_diff": fresh, "loss": batch.adds_to_n}
        for name, value in values.items():
            totals.add(name, value, counts.get(name, len(batch.rows)))
        totals.add("lag", float(batch.lags.sum()), len(batch.rows))
        totals.raise_to("lag", float(batch.lags.max(initial=0)))
    return totals, unsound
