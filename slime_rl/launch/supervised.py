"""Supervised learning: the trainer alone, on worked examples."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from slime_rl.actors.trainer import TrainerGroup, read_worked_examples
from slime_rl.buffer.dataset import Selection
from slime_rl.buffer.order import Order
from slime_rl.config import Config
from slime_rl.errors import ConfigError, cause_first
from slime_rl.guard import Guard
from slime_rl.journal import folder as run_folder
from slime_rl.journal.checkpoints import Checkpoint
from slime_rl.journal.folder import RunFolder, mark_begun
from slime_rl.journal.history import rewind
from slime_rl.journal.metrics import MetricsLog
from slime_rl.launch import preflight
from slime_rl.launch.cluster import ray_cluster, run_to_end
from slime_rl.launch.progress import console, step_bar
from slime_rl.launch.resumption import Resumption
from slime_rl.launch.selection import tell
from slime_rl.types import AssignedGroup, Assignment, Version


def run(config: Config) -> Path:
    """Train and return the Hugging Face folder of the last weights."""
    preflight.require(config, supervised=True, command="sft")
    inputs = preflight.check(config)
    tell(config, inputs.selection)
    epochs = config.data.max_epochs
    wanted = config.loop.steps * config.loop.groups_per_step
    order = Order(inputs.selection.sources, config.run.seed, config.data.shuffle)
    if epochs is not None and wanted > order.num_issues(epochs):
        expected = f"must ask for at most {order.num_issues(epochs)} prompts (data.max_epochs is {epochs})"
        raise ConfigError("loop.steps", f"{expected} at {config.loop.groups_per_step} a step", config.loop.steps)
    with run_folder.held(Path(config.run.folder)):
        return _run_in(run_folder.create(config), config, inputs.selection, None)


def resume(found: Resumption) -> Path:
    """Go on with a run from its newest checkpoint."""
    with run_folder.held(found.folder.path):
        inputs = preflight.check_again(found.config)
        run_folder.write_down(found.folder, found.config)
        rewind(found.folder.path, found.version)
        return _run_in(found.folder, found.config, inputs.selection, found.checkpoint)


def _run_in(folder: RunFolder, config: Config, selection: Selection, start: Checkpoint | None) -> Path:
    with Guard(), ray_cluster(), cause_first():
        run_to_end(_train(config, folder, selection, start))
    console.print(f"weights: {folder.export}")
    return folder.export


async def _train(config: Config, folder: RunFolder, selection: Selection, start: Checkpoint | None) -> None:
    checkpoints = folder.checkpoints(config.checkpoint.keep)
    checkpoints.clear()
    trainer = TrainerGroup(
        config,
        logs=folder.logs,
        open_reader=partial(read_worked_examples, config, selection),
        engines=(),
        checkpoints=checkpoints,
        start=start,
        published=folder.path,
    )
    metrics = MetricsLog(folder.path)
    try:
        with step_bar("supervised", config.loop.steps) as bar:
            version = await trainer.load()
            mark_begun(folder)
            reached = False
            while version < config.loop.steps and not reached:
                report = await trainer.step(_next_groups(version, config.loop.groups_per_step))
                version = report.version
                values = {"loss": report.mean("loss"), "lr": report.mean("lr")}
                if _is_due(config, version):
                    values["heldout_probability"] = await trainer.probability()
                    reached = _reaches(config, values["heldout_probability"])
                metrics.step(version, values)
                if version % config.checkpoint.every == 0:
                    await trainer.save(version)
                bar.advance(version, ", ".join(f"{name} {value:.3g}" for name, value in values.items()))
        await trainer.save(version)
    finally:
        await trainer.close()
        metrics.close()


def _is_due(config: Config, version: Version) -> bool:
    evaluation = config.evaluation
    return evaluation is not None and (version % evaluation.every == 0 or version == config.loop.steps)


def _reaches(config: Config, score: float) -> bool:
    return config.loop.stop_at_score is not None and score >= config.loop.stop_at_score


def _next_groups(step: Version, groups_per_step: int) -> Assignment:
    """The next prompts, as groups of one sample."""
    ids = range(step * groups_per_step, (step + 1) * groups_per_step)
    groups = tuple(AssignedGroup(id=id, num_samples=1, num_tokens=1, oldest=step) for id in ids)
    return Assignment(step=step, groups=groups)
