"""The folder of a run, and the identity in it."""

from __future__ import annotations

import fcntl
import importlib.metadata
import json
import os
import platform
import secrets
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slime_rl.config import Config
from slime_rl.errors import RunFolderError
from slime_rl.journal.checkpoints import Checkpoints

IDENTITY = "run.json"
LOCK = "lock"
EVALUATIONS = "evaluations"
PACKAGES = ("slime-rl", "torch", "megatron-core", "sglang", "ray", "redis", "transformers", "mbridge")


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The paths of a run; `id` names it in the buffer's keys. It has `began` once its weights were served."""

    path: Path
    id: str
    began: bool = False

    @property
    def config(self) -> Path:
        return self.path / "config.yaml"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def samples(self) -> Path:
        return self.path / "samples"

    @property
    def redis(self) -> Path:
        return self.path / "redis"

    @property
    def export(self) -> Path:
        """The newest checkpoint: a Hugging Face folder of the weights."""
        return self.path / "export"

    def checkpoints(self, keep: int) -> Checkpoints:
        """The checkpoints, of which `keep` stay."""
        return Checkpoints(self.path / "checkpoints", export=self.export, keep=keep)


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Keep other processes out of a run folder, which is made if need be, until the block or this process ends.

    Raises RunFolderError if one is in it.
    """
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = os.open(path / LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise RunFolderError(f"run.folder must be a folder that can be made, got {path} ({error.strerror})") from None
    try:
        _lock(lock, path)
        yield
    finally:
        os.close(lock)


def _lock(lock: int, path: Path) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise RunFolderError(f"{path} is in use by a process that still runs: end it, or name another folder") from None


def open_used(path: Path) -> RunFolder:
    """The folder of a run that has been; raises RunFolderError where there is none."""
    run = _identity(path)
    if run is None:
        raise RunFolderError(f"expected a run folder, got {path}, which has no {IDENTITY}")
    return RunFolder(path.resolve(), run["id"], run["began"])


def check_unused(path: Path) -> None:
    """Refuse a folder that a run has used, or that holds anything but evaluations and a run that never began.

    Raises RunFolderError in words that say what to do.
    """
    if path.exists() and not path.is_dir():
        raise RunFolderError(f"run.folder must be a new or empty folder, got the file {path}")
    if (run := _identity(path)) is not None:
        if run["began"]:
            raise RunFolderError(
                f"run.folder must be a new or empty folder, got {path}, which holds run {run['id']}: "
                f"resume it (slime-rl resume {path}), or choose another folder (run.folder=...)"
            )
    elif path.is_dir() and any(entry.name not in (EVALUATIONS, LOCK) for entry in path.iterdir()):
        raise RunFolderError(
            f"run.folder must be a new or empty folder, got {path}, which is not: choose another (run.folder=...)"
        )


def create(config: Config) -> RunFolder:
    """Make a folder that is `held` a new run's, private to its user, with configuration and environment in it.

    Raises RunFolderError if it is in use.
    """
    path = Path(config.run.folder).resolve()
    check_unused(path)
    _clear(path)
    path.chmod(0o700)
    folder = RunFolder(path, secrets.token_hex(4))
    for part in (folder.logs, folder.samples, folder.path / "checkpoints", folder.redis):
        part.mkdir()
    write_down(folder, config)
    write_json(path / IDENTITY, {"id": folder.id, "began": False})
    return folder


def write_down(folder: RunFolder, config: Config) -> None:
    """Keep the configuration that a run begins or goes on with, and the environment it does so in."""
    aside = folder.path / "config.yaml.part"
    aside.write_text(config.dump(), encoding="utf-8")
    aside.replace(folder.config)
    write_json(folder.path / "environment.json", environment(config))


def mark_begun(folder: RunFolder) -> None:
    """From here on the folder is this run's: before, a new start may take it over."""
    write_json(folder.path / IDENTITY, {"id": folder.id, "began": True})


def _identity(path: Path) -> dict[str, Any] | None:
    file = path / IDENTITY
    try:
        return json.loads(file.read_text(encoding="utf-8")) if file.exists() else None
    except (OSError, ValueError) as error:
        raise RunFolderError(f"run.folder must be a folder of ours, but {file} cannot be read: {error}") from None


def _clear(path: Path) -> None:
    """Delete what a run that never began has left."""
    if _identity(path) is not None:
        for entry in path.iterdir():
            if entry.name in (EVALUATIONS, LOCK):
                continue
            shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()


def environment(config: Config) -> dict[str, Any]:
    """What a reader needs to repeat the run."""
    return {
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "seed": config.run.seed,
        "packages": {name: _version(name) for name in PACKAGES},
    }


def write_json(path: Path, value: Any) -> None:
    """Write a whole JSON file or none: aside first, then renamed."""
    aside = path.with_suffix(path.suffix + ".part")
    aside.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
    aside.replace(path)


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
