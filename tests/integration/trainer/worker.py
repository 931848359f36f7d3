"""A process that does what a test asks: a real trainer rank, or plain Hugging Face to compare it with.

Requests and answers go over a socket that is inherited; the process ends with the test run, whatever it is waiting for.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

import megatron_checks
import numpy as np
import psutil
import torch
import transformers
from megatron_checks import start
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM

from slime_rl.config_file import validate
from slime_rl.errors import SlimeError, TrainerError
from slime_rl.journal.checkpoints import Checkpoint
from slime_rl.trainer import optimizer
from slime_rl.types import Group, Sample, StepReport

Weights = dict[str, NDArray]

_CONFIGS = {
    "qwen3": transformers.Qwen3Config,
    "qwen2": transformers.Qwen2Config,
    "llama": transformers.LlamaConfig,
}
_SHAPE = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
}


def make_model(kind: str, folder: str, **options: Any) -> None:
    """Save a tiny model whose every weight is telling: norms off 1, biases off 0, sharp logits."""
    shape = {name: value for name, value in _SHAPE.items() if kind != "qwen2" or name != "head_dim"}
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(_CONFIGS[kind](**(shape | options)))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name:
                weight.copy_(1 + 0.2 * torch.randn_like(weight))
            elif name.endswith("bias"):
                weight.copy_(0.1 * torch.randn_like(weight))
            else:
                weight.mul_(3)
    model.save_pretrained(folder)


def train(
    config: dict[str, Any],
    *,
    rank: int,
    world_size: int,
    port: int,
    groups: Sequence[Group],
    shares: Sequence[Sequence[int]],
    save: Checkpoint | None = None,
    resume: Checkpoint | None = None,
) -> tuple[list[StepReport], Weights]:
    """Take a step for each share of group ids, those of 0 first or of the checkpoint; the reports and the weights."""
    trainer = start(config, rank=rank, world_size=world_size, port=port, groups=groups, resume=resume)
    try:
        first = resume.version if resume else 0
        reports = [trainer.step(share, step) for step, share in enumerate(shares, first)]
        if save:
            trainer.save(save)
        return reports, {name: weight.float().numpy().copy() for name, weight in trainer.export()}
    finally:
        trainer.close()


def train_wrongly(config: dict[str, Any], **arguments: Any) -> tuple[list[StepReport], Weights]:
    """As `train`, with each rank dividing by its own tokens."""
    optimizer.finalize_model_grads = _mean_of_means
    try:
        return train(config, **arguments)
    finally:
        optimizer.finalize_model_grads = _finalize_model_grads


def poisoned_step(
    config: dict[str, Any], *, rank: int, world_size: int, port: int, groups: Sequence[Group], poisoned: str
) -> tuple[str, bool]:
    """A sound step, then one whose loss or gradient is no number: its error, and whether it has changed nothing."""
    trainer = start(config, rank=rank, world_size=world_size, port=port, groups=groups)
    ids = [group.id for group in groups]
    try:
        trainer.step(ids, 0)
        before = _everything(trainer)
        if poisoned == "loss":
            samples = tuple(replace(sample, temperature=1e-45) for sample in groups[-1].samples)
            trainer._read_groups = lambda _: [*groups[:-1], replace(groups[-1], samples=samples)]
        else:
            trainer._policy.head.register_hook(lambda gradient: gradient * torch.inf)
        try:
            trainer.step(ids, 1)
        except TrainerError as error:
            return str(error), all(map(torch.equal, before, _everything(trainer)))
        return "no error", False
    finally:
        trainer.close()


def probability(
    config: dict[str, Any], *, rank: int, world_size: int, port: int, groups: Sequence[Group], share: Sequence[int]
) -> float:
    """How likely the model is to write the masked-in tokens of all ranks' shares."""
    trainer = start(config, rank=rank, world_size=world_size, port=port, groups=groups)
    try:
        return trainer.probability([group for group in groups if group.id in share])
    finally:
        trainer.close()


def compare(
    config: dict[str, Any], *, rank: int, world_size: int, port: int, groups: Sequence[Group], share: Sequence[int]
) -> tuple[float, float]:
    """Mean and maximum difference between the recorded log-probs of all ranks' shares and the model's."""
    trainer = start(config, rank=rank, world_size=world_size, port=port, groups=groups)
    try:
        return trainer.compare([group for group in groups if group.id in share])
    finally:
        trainer.close()


def inspect_rank(
    config: dict[str, Any], *, rank: int, world_size: int, port: int, groups: Sequence[Group]
) -> dict[str, set[str]]:
    """After a step: the types of the weights, of the master weights and their state, and who may connect."""
    trainer: Any = start(config, rank=rank, world_size=world_size, port=port, groups=groups)
    try:
        trainer.step([group.id for group in groups], 0)
        optimizer = trainer._optimizer._optimizer
        listeners = [c for c in psutil.Process().net_connections("tcp") if c.status == psutil.CONN_LISTEN]
        return {
            "exported": {str(weight.dtype) for _, weight in trainer.export()},
            "master": {str(weight.dtype) for group in optimizer.param_groups for weight in group["params"]},
            "moments": {str(value.dtype) for _, state in optimizer.state.items() for value in state.values()},
            "gradients": {str(buffer.grad_dtype) for buffer in trainer._optimizer._model.buffers},
            "listeners": {connection.laddr.ip for connection in listeners},
        }
    finally:
        trainer.close()


def step_out_of_order(
    config: dict[str, Any], *, rank: int, world_size: int, port: int, groups: Sequence[Group]
) -> None:
    """Ask for step 5 first."""
    trainer = start(config, rank=rank, world_size=world_size, port=port, groups=groups)
    try:
        trainer.step([], 5)
    finally:
        trainer.close()


def _everything(trainer: Any) -> list[torch.Tensor]:
    """Copies of the weights and the state of the optimiser."""
    states = trainer._optimizer._optimizer.state.items()
    moments = [value for _, state in states for value in state.values()]
    return [tensor.clone() for tensor in (*(weight for _, weight in trainer.export()), *moments)]


def measure(
    config: dict[str, Any], *, rank: int, world_size: int, port: int, groups: Sequence[Group], steps: int
) -> dict[str, float]:
    """Seconds of the fastest step here and of plain Hugging Face with torch's AdamW on the same groups, in turn."""
    ids = [group.id for group in groups]
    trainer = start(config, rank=rank, world_size=world_size, port=port, groups=groups)
    plain = _PlainTrainer(config)
    ours, theirs = [], []
    for step in range(steps):
        begin = time.process_time()
        trainer.step(ids, step)
        between = time.process_time()
        plain.step_padded(groups)
        ours.append(between - begin)
        theirs.append(time.process_time() - between)
    trainer.close()
    return {"ours": min(ours), "hugging_face": min(theirs)}


def train_plainly(
    config: dict[str, Any], *, groups: Sequence[Group], shares: Sequence[Sequence[int]]
) -> tuple[list[float], list[float], Weights]:
    """The same steps by Hugging Face and torch's AdamW, one sample at a time: losses, gradient norms, weights."""
    by_id = {group.id: group for group in groups}
    plain = _PlainTrainer(config)
    losses, norms = zip(*(plain.step([by_id[id] for id in share]) for share in shares), strict=True)
    return list(losses), list(norms), {name: weight.detach().numpy() for name, weight in plain.weights().items()}


def record_logprobs(folder: str, groups: Sequence[Group]) -> list[Group]:
    """The groups with the log-probs that Hugging Face gives them at their temperature."""
    model = _load(folder)
    with torch.no_grad():
        return [
            replace(group, samples=tuple(replace(s, logprobs=_masked_logprobs(model, s)) for s in group.samples))
            for group in groups
        ]


def read_weights(folder: str) -> Weights:
    """The weights of a folder as transformers loads them."""
    model = _load(folder, dtype="auto")
    return {name: weight.detach().float().numpy() for name, weight in model.named_parameters()}


class _PlainTrainer:
    """GRPO and supervised steps as one would write them down."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = validate(config)
        self.model = _load(self.config.model.path).train()
        trainer = self.config.trainer
        decayed = [weight for weight in self.model.parameters() if weight.ndim > 1]
        others = [weight for weight in self.model.parameters() if weight.ndim == 1]
        self.optimizer = torch.optim.AdamW(
            [{"params": decayed}, {"params": others, "weight_decay": 0.0}],
            lr=trainer.lr,
            betas=trainer.betas,
            eps=trainer.eps,
            weight_decay=trainer.weight_decay,
        )

    def weights(self) -> dict[str, torch.nn.Parameter]:
        return dict(self.model.named_parameters())

    def step(self, groups: Sequence[Group]) -> tuple[float, float]:
        pairs = [
            pair
            for group, advantages in zip(groups, self._advantages(groups), strict=True)
            for pair in zip(group.samples, advantages, strict=True)
        ]
        num_trained = sum(sample.num_trained for sample, _ in pairs)
        total = 0.0
        for sample, advantage in pairs:
            loss = self._loss(sample, advantage)
            match self.config.objective.reducer:  # no branches here: a sample is a trajectory
                case "token_mean":
                    loss = loss / num_trained
                case "sequence_mean":
                    loss = loss / sample.num_trained / len(pairs)
                case "constant":
                    loss = loss / (self.config.objective.reducer_length or 0) / len(pairs)
            loss.backward()
            total += loss.item()
        return total, self._update()

    def _advantages(self, groups: Sequence[Group]) -> list[list[float]]:
        match self.config.objective.estimator:
            case "grpo":
                return [_advantages(group) for group in groups]
            case "rloo":
                return [_against_the_others(group) for group in groups]
            case "reinforce_pp":
                found = [_advantages(group) for group in groups]
                std = float(np.std(np.concatenate(found), ddof=1)) + 1e-6
                return [[advantage / std for advantage in advantages] for advantages in found]

    def step_padded(self, groups: Sequence[Group]) -> None:
        """One batch of all samples, right-padded: how fast a plain trainer is."""
        samples = [sample for group in groups for sample in group.samples]
        advantages = torch.tensor([a for group in groups for a in _advantages(group)])
        length = max(sample.num_tokens for sample in samples)
        tokens, mask = torch.zeros(len(samples), length, dtype=torch.long), torch.zeros(len(samples), length)
        present, behaviour = tokens.clone(), mask.clone()
        for row, sample in enumerate(samples):
            tokens[row, : sample.num_tokens] = torch.from_numpy(sample.tokens)
            mask[row, : sample.num_tokens] = torch.from_numpy(sample.loss_mask).float()
            behaviour[row, : sample.num_tokens] = torch.from_numpy(sample.logprobs)
            present[row, : sample.num_tokens] = 1
        logits = self.model(tokens, attention_mask=present).logits[:, :-1]
        logprobs = torch.log_softmax(logits, dim=-1).gather(2, tokens[:, 1:, None]).squeeze(2)
        loss = self._token_loss(logprobs, behaviour[:, 1:], advantages[:, None])
        ((loss * mask[:, 1:]).sum() / mask.sum()).backward()
        self._update()

    def _loss(self, sample: Sample, advantage: float) -> torch.Tensor:
        logprobs = _logprobs(self.model, sample)
        behaviour = torch.from_numpy(sample.logprobs[1:])
        loss = self._token_loss(logprobs, behaviour, torch.tensor(advantage))
        if self.config.objective.entropy_bonus:
            loss = loss - self.config.objective.entropy_bonus * self._entropy(sample)
        return loss[torch.from_numpy(sample.loss_mask[1:])].sum()

    def _entropy(self, sample: Sample) -> torch.Tensor:
        logits = self.model(torch.from_numpy(sample.tokens).long()[None]).logits[0, :-1] / sample.temperature
        return torch.distributions.Categorical(logits=logits).entropy()

    def _token_loss(self, logprobs: torch.Tensor, behaviour: torch.Tensor, advantages: torch.Tensor) -> torch.Tensor:
        """One step is taken on a batch, so every ratio is 1 and only its gradient counts."""
        objective = self.config.objective
        if objective.loss == "sft":
            return -logprobs
        weight = torch.exp(logprobs.detach() - behaviour)
        if objective.correction == "tis":
            weight = weight.clamp(max=objective.correction_cap)
        elif objective.correction == "icepop":
            weight = weight * (weight >= objective.correction_low) * (weight <= objective.correction_high)
        if objective.loss == "cispo":
            return -weight * advantages * logprobs
        return -weight * advantages * torch.exp(logprobs - logprobs.detach())

    def _update(self) -> float:
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.trainer.clip_grad)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return norm.item()


def _advantages(group: Group) -> list[float]:
    rewards = [sample.reward or 0.0 for sample in group.samples]
    return [reward - sum(rewards) / len(rewards) for reward in rewards]


def _against_the_others(group: Group) -> list[float]:
    rewards = [sample.reward or 0.0 for sample in group.samples]
    return [reward - (sum(rewards) - reward) / (len(rewards) - 1) for reward in rewards]


def _load(folder: str, dtype: Any = torch.float32) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)


def _logprobs(model: Any, sample: Sample) -> torch.Tensor:
    tokens = torch.from_numpy(sample.tokens).long()
    logits = model(tokens[None]).logits[0, :-1] / sample.temperature
    return torch.log_softmax(logits, dim=-1).gather(1, tokens[1:, None]).squeeze(1)


def _masked_logprobs(model: Any, sample: Sample) -> NDArray[np.float32]:
    logprobs = np.concatenate((np.zeros(1, np.float32), _logprobs(model, sample).numpy()))
    return np.where(sample.loss_mask, logprobs, np.float32(0))


_finalize_model_grads = optimizer.finalize_model_grads


def _mean_of_means(model: Any, num_tokens: torch.Tensor, **options: Any) -> None:
    """The fault that the one denominator is there against: each rank divides by its own tokens."""
    for chunk in model:
        chunk.scale_gradients(1 / max(1, num_tokens.item()) / torch.distributed.get_world_size())
    _finalize_model_grads(model, None, **options)


SCENARIOS: dict[str, Callable[..., Any]] = {
    scenario.__name__: scenario
    for scenario in (
        make_model,
        train,
        train_wrongly,
        train_plainly,
        record_logprobs,
        read_weights,
        poisoned_step,
        probability,
        compare,
        inspect_rank,
        step_out_of_order,
        measure,
    )
}


def _end_with_the_test_run() -> None:
    os.read(sys.stdin.fileno(), 1)  # unlike sys.stdin, takes no lock that a forked child would wait for
    os._exit(1)


def main(socket: int) -> None:
    """Answer requests until the other side is gone. An error of slime_rl is an answer; any other ends the process."""
    threading.Thread(target=_end_with_the_test_run, daemon=True).start()
    scenarios = SCENARIOS | megatron_checks.SCENARIOS
    connection = Connection(socket)
    while True:
        try:
            name, arguments = connection.recv()
        except EOFError:
            return
        try:
            connection.send((None, scenarios[name](**arguments)))
        except SlimeError as error:
            connection.send(((type(error).__name__, str(error)), None))


if __name__ == "__main__":
    main(int(sys.argv[1]))
