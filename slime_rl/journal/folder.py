"""The folder of a run, and the identity in it."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import secrets
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slime_rl.config import Config
from slime_rl.errors import RunFolderError

IDENTITY = "run.json"
EVALUATIONS = "evaluations"
PACKAGES = ("slime-rl", "torch", "megatron-core", "sglang", "ray", "redis", "transformers", "mbridge")


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The paths of a run; `id` names it in the buffer's keys."""

    path: Path
    id: str

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def samples(self) -> Path:
        return self.path / "samples"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def redis(self) -> Path:
        return self.path / "redis"

    @property
    def export(self) -> Path:
        """The Hugging Face folder of the final weights."""
        return self.path / "export"

    def checkpoint(self, version: int) -> Path:
        """The Hugging Face folder of a version's weights."""
        return self.checkpoints / f"version-{version:06d}"

    def saved(self) -> list[Path]:
        """The checkpoints there are, the newest last."""
        return sorted(self.checkpoints.glob("version-*"))

    def link_export(self) -> None:
        """Let `export` be the newest checkpoint."""
        self.export.symlink_to(self.saved()[-1].relative_to(self.path))

    def prune(self, keep: int) -> None:
        """Delete all but the newest `keep` checkpoints."""
        for old in self.saved()[:-keep]:
            shutil.rmtree(old)


def open_used(path: Path) -> RunFolder:
    """The folder of a run that has been; raises RunFolderError where there is none."""
    run = _identity(path)
    if run is None:
        raise RunFolderError(f"expected a run folder, got {path}, which has no {IDENTITY}")
    return RunFolder(path.resolve(), run["id"])


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
                "resume it (not built yet), or choose another folder (run.folder=...)"
            )
    elif path.is_dir() and any(entry.name != EVALUATIONS for entry in path.iterdir()):
        raise RunFolderError(
            f"run.folder must be a new or empty folder, got {path}, which is not: choose another (run.folder=...)"
        )


def create(config: Config) -> RunFolder:
    """Make the folder of a new run, private to its user, with its configuration and environment written down.

    Raises RunFolderError if it is in use.
    """
    path = Path(config.run.folder).resolve()
    check_unused(path)
    _clear(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(0o700)
    except OSError as error:
        raise RunFolderError(f"run.folder must be a folder that can be made, got {path} ({error.strerror})") from None
    folder = RunFolder(path, secrets.token_hex(4))
    for part in (folder.logs, folder.samples, folder.checkpoints, folder.redis):
        part.mkdir()
    (path / "config.yaml").write_text(config.dump(), encoding="utf-8")
    write_json(path / "environment.json", environment(config))
    write_json(path / IDENTITY, {"id": folder.id, "began": False})
    return folder


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
            if entry.name == EVALUATIONS:
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
