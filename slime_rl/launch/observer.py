"""Watches a run step by step: evaluates, records, shows, and says when the goal is reached."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slime_rl.actors.trainer import TrainerGroup
from slime_rl.buffer.redis_buffer import RedisBuffer
from slime_rl.buffer.server import EmbeddedServer
from slime_rl.config import Config
from slime_rl.journal.curve import draw_curve
from slime_rl.journal.folder import RunFolder, write_json
from slime_rl.journal.history import History
from slime_rl.journal.metrics import MetricsLog, size_row
from slime_rl.journal.phases import Phases
from slime_rl.launch.fleet import Fleet
from slime_rl.launch.preflight import Inputs
from slime_rl.launch.progress import StepBar
from slime_rl.launch.workers import Workers
from slime_rl.types import Assignment, Group, Message, Prompt, StepReport, Version

NUM_SAMPLE_GROUPS = 2


@dataclass(slots=True)
class Difference:
    """How far the engines' log-probs are from the trainer's, over all tokens compared so far."""

    total: float = 0.0
    count: float = 0.0
    top: float | None = None

    def add(self, total: float, count: float, top: float) -> None:
        """Add `count` tokens."""
        self.total += total
        self.count += count
        self.top = top if self.top is None else max(self.top, top)

    @property
    def mean(self) -> float | None:
        return self.total / self.count if self.count else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What a run consists of, once it is up; `read` fetches groups from the buffer, on a `server` of its own
    or, where that is None, on an external one.
    """

    server: EmbeddedServer | None
    buffer: RedisBuffer
    fleet: Fleet
    workers: Workers
    trainer: TrainerGroup
    read: Callable[[Sequence[int]], list[Group]]


class Observer:
    """Keeps the figures of a run."""

    def __init__(
        self,
        config: Config,
        *,
        folder: RunFolder,
        inputs: Inputs,
        phases: Phases,
        bar: StepBar,
        parts: Parts,
        history: History,
    ) -> None:
        self._config = config
        self._folder = folder
        self._inputs = inputs
        self._phases = phases
        self._bar = bar
        self._parts = parts
        self._metrics = MetricsLog(folder.path)
        self._step_started = time.monotonic()
        self._difference = Difference()
        self.rows = history.rows
        self.scores = history.scores
        for row in self.rows:
            if not math.isnan(row["logprob_abs_diff"]):  # a step that trained nothing has none
                self._difference.add(
                    row["logprob_abs_diff"] * row["num_tokens"], row["num_tokens"], row["logprob_abs_diff_max"]
                )

    def resumed(self, version: Version, changes: Mapping[str, Any]) -> None:
        """Record that the run goes on from a version, and with which changes."""
        self._metrics.resumed(version)
        self._metrics.event("resumed", version=version, changes=changes)
        self._bar.advance(version, f"resumed at version {version}")

    async def before(self, version: Version) -> bool:
        """Score the weights that the run starts from, unless that is done; True if they reach the goal already."""
        reached = False if self.scores else await self._score(version)
        self._phases.take_step()
        self._step_started = time.monotonic()
        return reached

    async def after_step(self, assignment: Assignment, report: StepReport) -> bool:
        """Record a step, and score its version where it is due; True once the goal is reached."""
        self._keep_samples(assignment)
        evaluation = self._config.evaluation
        due = evaluation is not None and report.version % evaluation.every == 0
        reached = await self._score(report.version) if due else False
        await self._record(assignment, report)
        return reached

    async def after(self, version: Version) -> None:
        """Score the last version, if it was not due."""
        if not self.scores or self.scores[-1][0] != version:
            await self._score(version)

    async def summarise(self) -> dict[str, Any]:
        """Write `summary.json` and the learning curve, and return the summary."""
        status = await self._parts.buffer.status()
        summary = {
            "steps": len(self.rows),
            "heldout_before": self.scores[0][1] if self.scores else None,
            "heldout_after": self.scores[-1][1] if self.scores else None,
            "prompts": len(self._inputs.prompts),
            "prompts_over_long": self._inputs.selection.num_left_out,
            "heldout_overlap": self._inputs.overlap,
            "max_lag_seen": int(max((row["lag_max"] for row in self.rows), default=0)),
            "logprob_abs_diff_mean": self._difference.mean,
            "logprob_abs_diff_max": self._difference.top,
            "dropped": dict(status.dropped),
            "requeued": dict(status.requeued),
            "seconds_total": time.monotonic() - self._phases.started,
            "seconds_by_phase": dict(self._phases.total),
        }
        write_json(self._folder.path / "summary.json", summary)
        rewards = [(int(row["step"]), row["reward"]) for row in self.rows]
        title = "/".join(self._folder.path.parts[-2:])
        draw_curve(self._folder.path / "learning_curve.png", title=title, rewards=rewards, scores=self.scores)
        return summary

    def close(self) -> None:
        """Close the files."""
        self._metrics.close()

    async def _score(self, version: Version) -> bool:
        if self._config.evaluation is None:
            return False
        with self._phases.measure("evaluate"):
            result = await self._parts.workers.evaluate()
        self.scores.append((version, result.score))
        self._metrics.event(
            "evaluation",
            version=version,
            score=result.score,
            prompts=len(result.scores),
            truncated_share=result.truncated_share,
        )
        goal = self._config.loop.stop_at_score
        return goal is not None and result.score >= goal

    async def _record(self, assignment: Assignment, report: StepReport) -> None:
        mean, top = await self._compare(report)
        status = await self._parts.buffer.status()
        now = time.monotonic()
        spent, seconds = now - self._step_started, self._phases.take_step()
        self._step_started = now
        row = step_row(assignment, report, seconds=seconds, spent_s=spent, synchronous=self._config.loop.max_lag == 0)
        row |= {"logprob_abs_diff": mean, "logprob_abs_diff_max": top}
        row |= size_row(assignment, samples_per_prompt=self._config.loop.samples_per_prompt)
        row |= {"dropped": sum(status.dropped.values()), "requeued": sum(status.requeued.values())}
        if self.scores and self.scores[-1][0] == report.version:
            row["heldout"] = self.scores[-1][1]
        self.rows.append(row)
        self._metrics.step(report.version, {name: value for name, value in row.items() if name != "step"})
        score = f" held-out {self.scores[-1][1]:.3f}" if self.scores else ""
        self._bar.advance(report.version, f"reward {row['reward']:.3f}{score} lag {row['lag_max']:.0f}")

    async def _compare(self, report: StepReport) -> tuple[float, float]:
        """Engine against trainer: over the step's tokens of the trainer's own version, else over a canary sample."""
        name = "logprob_abs_diff"
        if report.counts[name]:
            self._difference.add(report.sums[name], report.counts[name], report.maxima[name])
            return report.mean(name), report.maxima[name]
        with self._phases.measure("canary"):
            group = await self._parts.workers.canary()
            mean, top = await self._parts.trainer.compare(group)
        count = sum(sample.num_trained for sample in group.samples)
        self._difference.add(mean * count, count, top)
        return mean, top

    def _keep_samples(self, assignment: Assignment) -> None:
        """Write the samples of the step's first groups with their rewards, one line each."""
        path = self._folder.samples / f"step-{assignment.step:06d}.jsonl"
        groups = self._parts.read([group.id for group in assignment.groups[:NUM_SAMPLE_GROUPS]])
        lines = [
            json.dumps(
                {
                    "group": group.id,
                    "prompt": _shown(self._inputs.prompts[group.prompt_index]),
                    "answer": self._inputs.prompts[group.prompt_index].answer,
                    "text": sample.text,
                    "reward": sample.reward,
                    "finish": str(sample.finish),
                    "versions": sorted({span.version for span in sample.versions}),
                    "temperature": sample.temperature,
                }
            )
            for group in groups
            for sample in group.samples
        ]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _shown(prompt: Prompt) -> str | list[Message]:
    return prompt.text if prompt.text is not None else list(prompt.messages or ())


def step_row(
    assignment: Assignment, report: StepReport, *, seconds: dict[str, float], spent_s: float, synchronous: bool
) -> dict[str, float]:
    """The metrics of one step under flat names; `lag_max` is over the trained tokens, as the trainer counts them.

    Rollout tokens per second are over the wait for groups in a synchronous run, where nothing else is generated in, and
    over the whole step in an asynchronous one.
    """
    new_tokens = report.counts["loss"]
    sampling_s = seconds.get("wait", 0.0) if synchronous else spent_s
    return {
        "step": report.version,
        "num_groups": len(assignment.groups),
        **{name: report.mean(name) for name in report.sums},
        **{f"{name}_max": value for name, value in report.maxima.items()},
        "rollout_tokens_per_s": new_tokens / sampling_s if sampling_s else math.nan,
        "trainer_tokens_per_s": sum(g.num_tokens for g in assignment.groups) / seconds["train"],
        "seconds": spent_s,
        **{f"seconds_{name}": value for name, value in seconds.items()},
        **{f"seconds_train_{name}": value for name, value in report.seconds.items()},
    }
