"""Trainer tokens per second over those of plain Hugging Face and torch's AdamW, on the same batch of equal lengths."""

from __future__ import annotations

import multiprocessing
import statistics
import time
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from bench.setting import configuration
from slime_rl.rollout.address import free_port
from slime_rl.types import Finish, Group, Sample, Span, Version

NUM_GROUPS, NUM_SAMPLES, PROMPT, ANSWER = 128, 4, 6, 4
ROUNDS = 12
WARM_UP = 3


def compare(root: Path) -> float:
    """The ratio of the median speeds; each side runs alone, in a process of its own, on one thread."""
    return _median_seconds(_hugging_face, root) / _median_seconds(_megatron, root)


def groups() -> list[Group]:
    """A step's groups with random tokens and rewards, each sample of one length."""
    draw = np.random.default_rng(0)
    return [Group(id=g, prompt_index=g, attempt=1, samples=_samples(draw)) for g in range(NUM_GROUPS)]


def _samples(draw: np.random.Generator) -> tuple[Sample, ...]:
    length = PROMPT + ANSWER
    return tuple(
        Sample(
            index=i,
            trajectory=i,
            tokens=draw.integers(3, 15, length).astype(np.int32),
            loss_mask=np.arange(length) >= PROMPT,
            logprobs=np.full(length, -2.0, np.float32),
            versions=(Span(Version(0), PROMPT, length),),
            temperature=1.0,
            finish=Finish.STOP,
            reward=float(draw.integers(0, 2)),
        )
        for i in range(NUM_SAMPLES)
    )


def _median_seconds(side, root: Path) -> float:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        seconds = pool.apply(side, (root,))
    return statistics.median(seconds[WARM_UP:])


def _megatron(root: Path) -> list[float]:
    torch.set_num_threads(1)
    from slime_rl.trainer.rank import MegatronRank

    batch = {group.id: group for group in groups()}
    rank = MegatronRank(
        configuration(root, "training", loop={"steps": ROUNDS}),
        rank=0,
        world_size=1,
        master_addr="127.0.0.1",
        master_port=free_port(),
        read_groups=lambda ids: [batch[id] for id in ids],
    )
    rank.load()
    return [_timed(lambda step=step: rank.step(list(batch), step)) for step in range(ROUNDS)]


def _hugging_face(root: Path) -> list[float]:
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(root / "model", dtype=torch.float32).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, betas=(0.9, 0.95), weight_decay=0.0)
    samples = [sample for group in groups() for sample in group.samples]
    tokens = torch.from_numpy(np.stack([s.tokens for s in samples])).long()
    behaviour = torch.from_numpy(np.stack([s.logprobs for s in samples]))[:, PROMPT:]
    rewards = torch.tensor([s.reward for s in samples]).view(NUM_GROUPS, NUM_SAMPLES)
    advantages = (rewards - rewards.mean(1, keepdim=True)).view(-1, 1)

    def step() -> None:
        optimizer.zero_grad()
        logits = model(tokens).logits[:, PROMPT - 1 : -1].float()
        logprobs = torch.log_softmax(logits, -1).gather(2, tokens[:, PROMPT:, None])[..., 0]
        proximal = logprobs.detach()
        ratio = (logprobs - proximal).exp()
        weight = (proximal - behaviour).exp().clamp(max=2.0)
        loss = (weight * torch.maximum(-advantages * ratio, -advantages * ratio.clamp(0.8, 1.28))).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return [_timed(step) for _ in range(ROUNDS)]


def _timed(step) -> float:
    start = time.perf_counter()
    step()
    return time.perf_counter() - start
