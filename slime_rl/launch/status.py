"""What a run's buffer holds at this moment."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

from rich import box
from rich.table import Table
from rich.text import Text

from slime_rl.buffer.endpoint import Endpoint
from slime_rl.buffer.redis_buffer import RedisBuffer
from slime_rl.buffer.server import running_url
from slime_rl.config_file import load_config
from slime_rl.errors import RunFolderError
from slime_rl.journal.folder import open_used
from slime_rl.launch.progress import console
from slime_rl.types import BufferStatus


def run(run_folder: str) -> None:
    """Print states, the oldest groups, drops by reason, lags and bytes; raises RunFolderError if nothing runs."""
    folder = open_used(Path(run_folder))
    config = load_config(str(folder.path / "config.yaml"), []).buffer
    url = config.find_url() or running_url(folder.path)
    if url is None:
        raise RunFolderError(f"expected a run that is under way, got {folder.path}, whose server has ended")
    _show(asyncio.run(_status(Endpoint(url, config), folder.id)))


async def _status(endpoint: Endpoint, run_id: str) -> BufferStatus:
    buffer = await RedisBuffer.join(endpoint, run_id)
    try:
        return await buffer.status()
    finally:
        await buffer.close()


def _show(status: BufferStatus) -> None:
    table = Table("what", "how many", box=box.SIMPLE)
    table.add_row("published version", str(status.version))
    table.add_row("slots", str(status.slots))
    for state, count in status.states.items():
        table.add_row(f"groups {state}" if state != "free" else "slots free", str(count))
    table.add_row("bytes", f"{status.num_bytes:,}")
    table.add_row("dropped", _counts(status.dropped))
    table.add_row("given back", _counts(status.requeued))
    table.add_row("groups by lag", _counts(status.lags))
    console.print(table)
    for line in status.waiting_for:
        console.print(Text(line))


def _counts(counts: Mapping[str, int] | Mapping[int, int]) -> Text:
    return Text(", ".join(f"{name}: {count}" for name, count in counts.items()) or "none")
