"""Scores a model on the evaluation set, without training."""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path

from slime_rl.actors.worker import Surroundings
from slime_rl.buffer.dataset import Selection
from slime_rl.config import Config
from slime_rl.errors import ConfigError, cause_first
from slime_rl.guard import Guard
from slime_rl.journal.folder import EVALUATIONS, write_json
from slime_rl.launch import preflight
from slime_rl.launch.cluster import ray_cluster, run_to_end
from slime_rl.launch.fleet import Fleet
from slime_rl.launch.progress import console
from slime_rl.launch.workers import Workers
from slime_rl.rollout.evaluation import Evaluation
from slime_rl.types import Prompt


def run(config: Config) -> float:
    """Score `model.path`; the result and every sample go to a new folder under `run.folder`/evaluations."""
    if config.evaluation is None:
        raise ConfigError("evaluation", "is required for slime-rl eval", None)
    inputs = preflight.check_evaluation(config)
    parent = Path(config.run.folder).resolve() / EVALUATIONS
    parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=time.strftime("%Y%m%d-%H%M%S-"), dir=parent))
    with Guard(), ray_cluster(), cause_first():
        result = run_to_end(_evaluate(config, folder / "logs", inputs.selection))
    _write(folder, config, inputs.held_out, result)
    console.print(f"score {result.score:.4f} over {len(result.scores)} prompts; {folder}")
    return result.score


async def _evaluate(config: Config, logs: Path, selection: Selection) -> Evaluation:
    with console.status("starting the engines"):
        async with Fleet(config, logs=logs) as fleet:
            around = Surroundings(router=fleet.router, logs=logs, buffer=None, selection=selection)
            async with Workers(config, around, num_workers=1) as workers:
                return await workers.evaluate()


def _write(folder: Path, config: Config, prompts: tuple[Prompt, ...], result: Evaluation) -> None:
    summary = {
        "model": config.model.path,
        "data": config.evaluation.path if config.evaluation else None,
        "score": result.score,
        "prompts": len(result.scores),
        "samples": len(result.lengths),
        "mean_length": float(result.lengths.mean()),
        "truncated_share": result.truncated_share,
    }
    write_json(folder / "result.json", summary)
    with (folder / "samples.jsonl").open("w", encoding="utf-8") as file:
        for prompt, group in zip(prompts, result.samples, strict=True):
            for sample in group:
                row = {"prompt": prompt.index, "answer": prompt.answer, "text": sample.text, "reward": sample.reward}
                file.write(json.dumps(row) + "\n")
