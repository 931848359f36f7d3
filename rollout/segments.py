"""Samples from their parts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from slime_rl.types import Sample, Segment, Span


def by_sample(segments: Iterable[Segment], num_samples: int) -> list[list[Segment]]:
    """The parts of each sample, in their order."""
    parts: list[list[Segment]] = [[] for _ in range(num_samples)]
    for segment in sorted(segments, key=lambda segment: segment.start):
        parts[segment.index].append(segment)
    return parts


def join(parts: Sequence[Segment], *, text: str) -> Sample:
    """The sample of all its parts, each beginning where the one before ends; raises ValueError for others."""
    first, last = parts[0], parts[-1]
    if [part.start for part in parts] != [0, *np.cumsum([part.num_tokens for part in parts[:-1]])]:
        raise ValueError(f"sample {first.index}: expected parts without a gap, got {[part.start for part in parts]}")
    if last.finish is None:
        raise ValueError(f"sample {first.index}: its last part does not finish it")
    return Sample(
        index=first.index,
        trajectory=first.index,
        tokens=np.concatenate([part.tokens for part in parts]),
        loss_mask=np.concatenate([part.loss_mask for part in parts]),
        logprobs=np.concatenate([part.logprobs for part in parts]),
        versions=_spans(parts),
        temperature=first.temperature,
        finish=last.finish,
        text=text,
    )


def _spans(parts: Sequence[Segment]) -> tuple[Span, ...]:
    """The spans of all parts, counted from the beginning of the sample; neighbours of one version are one."""
    spans: list[Span] = []
    for part in parts:
        for span in part.versions:
            moved = Span(span.version, part.start + span.start, part.start + span.end)
            if spans and spans[-1].version == moved.version and spans[-1].end == moved.start:
                spans[-1] = replace(spans[-1], end=moved.end)
            else:
                spans.append(moved)
    return tuple(spans)
