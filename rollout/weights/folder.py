"""The `disk` transport: weights reach the engines as a safetensors file in a folder that they can read."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from safetensors.torch import save_file

from slime_rl.rollout.weights.transport import Intake, Load, NamedTensor
from slime_rl.types import Version


@contextlib.contextmanager
def write(tensors: Sequence[NamedTensor], *, parent: Path) -> Iterator[Load]:
    """Hold `tensors` in a new folder below `parent`, which is removed when the context closes."""
    parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=parent, prefix="weights-") as folder:
        contiguous = {name: tensor.detach().contiguous() for name, tensor in tensors}
        save_file(contiguous, Path(folder) / "model.safetensors", metadata={"format": "pt"})

        async def load(engine: Intake, version: Version) -> None:
            await engine.load_folder(folder, version=version)

        yield load
