"""What a run shows on the terminal while it goes on."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.logging import RichHandler
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

console = Console()


class StepBar:
    """A progress bar over the steps of a run, with the last figures beside it."""

    def __init__(self, progress: Progress, title: str, steps: int) -> None:
        self._progress = progress
        self._task = progress.add_task(title, total=steps, figures="")

    def advance(self, step: int, figures: str) -> None:
        """Show that `step` steps are done."""
        self._progress.update(self._task, completed=step, figures=figures)


@contextmanager
def driver_log(folder: Path) -> Iterator[None]:
    """Write what the driver says of its waits to the terminal and to `driver.log` in `folder`."""
    log = logging.getLogger("slime_rl")
    handlers = [RichHandler(console=console, show_path=False), logging.FileHandler(folder / "driver.log")]
    handlers[1].setFormatter(logging.Formatter("%(asctime)s %(name)s %(message)s"))
    level = log.level
    log.setLevel(logging.INFO)
    for handler in handlers:
        log.addHandler(handler)
    try:
        yield
    finally:
        for handler in handlers:
            log.removeHandler(handler)
            handler.close()
        log.setLevel(level)


@contextmanager
def step_bar(title: str, steps: int) -> Iterator[StepBar]:
    """A bar that stays on the terminal with its last figures."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TextColumn("{task.fields[figures]}"), console=console) as progress:
        yield StepBar(progress, title, steps)
