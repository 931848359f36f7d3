"""What a run goes on with: its configuration with what may change, and where it stopped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from slime_rl.buffer.pacing import Pacing
from slime_rl.buffer.snapshot import Snapshot, decode_snapshot
from slime_rl.config import FREE, FROZEN, Config, Mark, mark_of
from slime_rl.config_file import load_config
from slime_rl.errors import CodecError, ConfigError, RunFolderError
from slime_rl.journal.checkpoints import Checkpoint
from slime_rl.journal.folder import RunFolder, open_used
from slime_rl.types import Version


@dataclass(frozen=True, slots=True)
class Resumption:
    """A run folder that goes on with `config`, of which `changes` are new, from its newest checkpoint.

    Without a checkpoint it begins at the weights of the configuration once more, with the groups that it had then.
    """

    folder: RunFolder
    config: Config
    changes: dict[str, Any]
    checkpoint: Checkpoint | None

    @property
    def version(self) -> Version:
        return self.checkpoint.version if self.checkpoint else Version(0)

    def snapshot(self, pacing: Pacing) -> Snapshot:
        """What the checkpoint knows of the buffer.

        Raises RunFolderError if that is damaged, or another run's.
        """
        if self.checkpoint is None:
            return Snapshot.initial(pacing.run_id, pacing.kept)
        file = self.checkpoint.buffer
        try:
            snapshot = decode_snapshot(file.read_bytes(), name=str(file))
        except (OSError, CodecError) as error:
            raise RunFolderError(f"the checkpoint {self.checkpoint.path} cannot be resumed: {error}") from error
        if snapshot.run_id != pacing.run_id:
            raise RunFolderError(f"{file} belongs to run {snapshot.run_id}, expected {pacing.run_id}")
        return snapshot


def find(run_folder: str, overrides: Sequence[str]) -> Resumption:
    """What `slime-rl resume` goes on with.

    Raises ConfigError for a change of what must stay as the run began, RunFolderError for a folder that holds no run
    which can go on.
    """
    used = open_used(Path(run_folder))
    if not used.began:
        raise RunFolderError(f"run {used.id} in {used.path} never began: start it again with its configuration")
    here = f"run.folder={used.path}"  # it may have been moved
    before = load_config(used.config, [here])
    config = load_config(used.config, [here, *overrides])
    changes = {path: now for path, was, now, mark in compare(before, config) if _may_change(path, was, now, mark)}
    folder = replace(used, path=Path(config.run.folder))
    checkpoints = folder.checkpoints(config.checkpoint.keep)
    checkpoint = checkpoints.newest()
    if checkpoint is not None and checkpoint.version >= config.loop.steps:
        expected = f"must be above {checkpoint.version}, which run {folder.id} has reached, for it to go on"
        raise ConfigError("loop.steps", expected, config.loop.steps)
    return Resumption(folder, config, changes, checkpoint)


def compare(before: Config, after: Config) -> Iterator[tuple[str, Any, Any, Mark]]:
    """The fields in which two configurations differ: dotted path, both values, and how the schema marks it."""
    return _compare("", before, after)


def _compare(prefix: str, before: BaseModel, after: BaseModel) -> Iterator[tuple[str, Any, Any, Mark]]:
    for name, field in type(after).model_fields.items():
        was, now = getattr(before, name), getattr(after, name)
        mark = mark_of(field)
        if was == now:
            continue
        if isinstance(was, BaseModel) and isinstance(now, BaseModel) and mark == "restart":
            yield from _compare(f"{prefix}{name}.", was, now)
        else:
            yield f"{prefix}{name}", was, now, mark


def _may_change(path: str, was: Any, now: Any, mark: Mark) -> bool:
    """Whether a change is worth noting; raises ConfigError for one that is not allowed."""
    if mark == FROZEN:
        raise ConfigError(path, f"must stay as the run began, {was!r}", now)
    return mark != FREE
