"""Copies a run's weights out."""

from __future__ import annotations

import shutil
from pathlib import Path

from slime_rl.errors import RunFolderError
from slime_rl.journal.checkpoints import STATE
from slime_rl.journal.folder import open_used
from slime_rl.launch.progress import console


def run(run_folder: str, target: str) -> Path:
    """Copy the newest weights of a run as a Hugging Face folder to `target`, which must not exist."""
    folder, copy = open_used(Path(run_folder)), Path(target)
    if not folder.export.exists():
        raise RunFolderError(f"{folder.path} has no checkpoint yet: checkpoint.every says how often one is written")
    if copy.exists():
        raise RunFolderError(f"{copy} exists: name a folder that does not")
    try:
        shutil.copytree(folder.export, copy, ignore=shutil.ignore_patterns(STATE))
    except OSError as error:
        raise RunFolderError(f"expected a folder that can be made, got {copy} ({error})") from None
    console.print(f"{folder.export.resolve().name} of {folder.path} is in {copy}")
    return copy
