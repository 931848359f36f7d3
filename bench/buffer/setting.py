"""What the parts of the benchmark share: a server, a run's pacing, groups of a given size, and a table."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
import redis

from slime_rl.buffer.pacing import Pacing
from slime_rl.buffer.server import EmbeddedServer
from slime_rl.types import Finish, Sample, Span, Version

BYTES_PER_TOKEN = 9  # of a sample's three arrays
CHARACTERS_PER_TOKEN = 4
PROSE = "\n".join(topics.values())
WAIT_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """The run's own kind of server in a folder that lasts as long; `admin` may change its settings."""

    url: str
    folder: Path
    admin: redis.Redis


@contextmanager
def open_server() -> Iterator[Server]:
    with tempfile.TemporaryDirectory() as folder:
        server = EmbeddedServer(Path(folder))
        url = server.start()
        try:
            with redis.Redis.from_url(url) as admin:
                yield Server(url=url, folder=Path(folder), admin=admin)
        finally:
            server.stop()


def pacing_for(run_id: str, *, groups_per_step: int, max_lag: int) -> Pacing:
    """A run that never ends, whose prompts never run out and whose leases outlast the benchmark."""
    return Pacing(
        run_id=run_id,
        groups_per_step=groups_per_step,
        samples_per_prompt=1,
        max_lag=max_lag,
        num_steps=2**19,
        num_prompts=1000,
        max_epochs=None,
        seed=0,
        shuffle=True,
        temperature=1.0,
        max_attempts=3,
        max_dropped_per_step=1000,
        lease_s=3600.0,
        wait_timeout_s=WAIT_S,
        slot_timeout_s=WAIT_S,
    )


def samples_of(num_bytes: int, num_samples: int, version: Version) -> list[Sample]:
    """Samples whose arrays take `num_bytes` each: half prompt and half answer, with the text of the answer."""
    draw = np.random.default_rng(0)
    num_tokens = max(1, round(num_bytes / BYTES_PER_TOKEN))
    prompt = num_tokens // 2
    loss_mask = np.arange(num_tokens) >= prompt
    return [
        Sample(
            index=i,
            trajectory=i,
            tokens=np.minimum(draw.zipf(1.2, num_tokens), 150_000).astype(np.int32),
            loss_mask=loss_mask,
            logprobs=np.where(loss_mask, -draw.exponential(0.3, num_tokens), 0).astype(np.float32),
            versions=(Span(version, prompt, num_tokens),),
            temperature=1.0,
            finish=Finish.STOP,
            text=_excerpt(i, (num_tokens - prompt) * CHARACTERS_PER_TOKEN),
            reward=float(draw.integers(0, 2)),
        )
        for i in range(num_samples)
    ]


def sampled_by(version: Version, samples: Sequence[Sample]) -> list[Sample]:
    """The same samples, by another version."""
    return [
        replace(sample, versions=tuple(replace(span, version=version) for span in sample.versions))
        for sample in samples
    ]


def raw_bytes(samples: Sequence[Sample]) -> int:
    """What the arrays of samples take."""
    return sum(
        array.nbytes
        for sample in samples
        for array in (sample.tokens, sample.logprobs, sample.loss_mask, *sample.arrays.values())
    )


def _excerpt(place: int, length: int) -> str:
    """So many characters of English prose, others at each place; repeated where it does not suffice."""
    start = place * length % len(PROSE)
    return (PROSE * (1 + (start + length) // len(PROSE)))[start : start + length]


def show(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table."""
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    print(f"\n{title}")
    for row in (columns, *rows):
        print("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)), flush=True)
