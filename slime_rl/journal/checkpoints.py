"""The checkpoints of a run. Each is whole, or not there: it is written aside, made durable, and then renamed.

version-000050/        a Hugging Face folder of the weights
    state/trainer/     what else the trainer needs
    state/buffer       what the buffer knew at that version; none in a run without one
    state/manifest.json
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slime_rl.errors import RunFolderError, TrainerError
from slime_rl.types import Version

FORMAT = 1
STATE = "state"
_MANIFEST = Path(STATE) / "manifest.json"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The folder of one version, finished or still written."""

    path: Path
    version: Version

    @property
    def trainer(self) -> Path:
        return self.path / STATE / "trainer"

    @property
    def buffer(self) -> Path:
        return self.path / STATE / "buffer"


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """All checkpoints of a run, in `folder`; `export` links to the newest, and only `keep` of them stay."""

    folder: Path
    export: Path
    keep: int

    def all(self) -> list[Checkpoint]:
        """Those that are finished, the newest last."""
        found = [(path, path.name.removeprefix("version-")) for path in self.folder.glob("version-*")]
        return sorted(
            (Checkpoint(path, Version(int(number))) for path, number in found if number.isdecimal()),
            key=lambda checkpoint: checkpoint.version,
        )

    def newest(self) -> Checkpoint | None:
        """The one to go on from, if there is any.

        Raises RunFolderError if a file of it is missing or cut: an older one is not taken in silence.
        """
        if not (found := self.all()):
            return None
        if fault := _fault(found[-1].path):
            before = f"to go on from version {found[-2].version}" if len(found) > 1 else "to begin again"
            raise RunFolderError(f"the checkpoint {found[-1].path} is damaged: {fault}; delete it {before}")
        return found[-1]

    @contextmanager
    def write(self, version: Version, snapshot: bytes | None) -> Iterator[Checkpoint | None]:
        """A folder to fill, which becomes the checkpoint of `version` at the end of the block; None if there is one.

        The buffer's snapshot is in it already.

        Raises TrainerError if the disk does not take it.
        """
        path = self.folder / f"version-{version:06d}"
        if path.exists():
            yield None
            return
        aside = Checkpoint(self.folder / f".{path.name}.{secrets.token_hex(4)}", version)
        try:
            with _named_faults(path):
                aside.trainer.mkdir(parents=True)
                if snapshot is not None:
                    aside.buffer.write_bytes(snapshot)
            yield aside
            with _named_faults(path):
                _write_manifest(aside.path, version)
                sync_tree(aside.path)
                aside.path.rename(path)
                _sync(self.folder)
                self._prune()
        finally:
            shutil.rmtree(aside.path, ignore_errors=True)

    def clear(self) -> None:
        """Delete what writers left behind that were killed."""
        for aside in self.folder.glob(".version-*"):
            shutil.rmtree(aside, ignore_errors=True)

    def _prune(self) -> None:
        found = self.all()
        link = self.export.with_name(f".{self.export.name}.{secrets.token_hex(4)}")
        link.symlink_to(os.path.relpath(found[-1].path, self.export.parent))
        link.replace(self.export)
        for old in found[: -self.keep]:
            shutil.rmtree(old.path)


def sync_tree(folder: Path) -> None:
    """Make every file and name in a folder durable."""
    for root, _, names in os.walk(folder, topdown=False):
        for name in names:
            _sync(Path(root, name))
        _sync(Path(root))


def _write_manifest(folder: Path, version: Version) -> None:
    sizes = {str(path.relative_to(folder)): path.stat().st_size for path in folder.rglob("*") if path.is_file()}
    text = json.dumps({"format": FORMAT, "version": version, "sizes": sizes}, indent=2) + "\n"
    (folder / _MANIFEST).write_text(text, encoding="utf-8")


def _fault(folder: Path) -> str | None:
    """What is wrong with a checkpoint, as far as its manifest tells."""
    try:
        manifest: dict[str, Any] = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
        if manifest["format"] != FORMAT:
            return f"its format is {manifest['format']}, expected {FORMAT}"
        for name, size in manifest["sizes"].items():
            if (found := (folder / name).stat().st_size) != size:
                return f"{name} has {found} bytes, expected {size}"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return str(error)
    return None


@contextmanager
def _named_faults(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise TrainerError(f"the checkpoint {path} cannot be written: {error}") from error


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
