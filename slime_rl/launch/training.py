"""Reinforcement learning: brings up buffer, engines, workers and trainer, drives the loop, and ends them all."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from slime_rl import loop
from slime_rl.actors.trainer import TrainerGroup, read_from_buffer
from slime_rl.actors.worker import Surroundings
from slime_rl.buffer.endpoint import Endpoint
from slime_rl.buffer.pacing import pacing_of
from slime_rl.buffer.reader import GroupReader
from slime_rl.buffer.redis_buffer import RedisBuffer
from slime_rl.buffer.server import EmbeddedServer
from slime_rl.config import Config
from slime_rl.errors import cause_first
from slime_rl.guard import Guard
from slime_rl.journal import folder as run_folder
from slime_rl.journal.folder import RunFolder
from slime_rl.journal.history import History, rewind
from slime_rl.journal.phases import Phases, TimedSteps, TimedTrainer
from slime_rl.launch import plan, preflight, report
from slime_rl.launch.cluster import ray_cluster, run_to_end
from slime_rl.launch.fleet import Fleet
from slime_rl.launch.observer import Observer, Parts
from slime_rl.launch.preflight import Inputs
from slime_rl.launch.progress import console, driver_log, step_bar
from slime_rl.launch.resumption import Resumption
from slime_rl.launch.selection import tell
from slime_rl.launch.workers import Workers


def run(config: Config) -> dict[str, Any]:
    """Run the whole training and return its summary; what it leaves is in the run folder."""
    preflight.require(config, supervised=False, command="train")
    inputs = preflight.check(config)
    tell(config, inputs.selection)
    with run_folder.held(Path(config.run.folder)):
        return _run_in(run_folder.create(config), config, inputs, None)


def resume(found: Resumption) -> dict[str, Any]:
    """Go on with a run from its newest checkpoint, and return the summary of the whole."""
    with run_folder.held(found.folder.path):
        inputs = preflight.check_again(found.config)
        run_folder.write_down(found.folder, found.config)
        return _run_in(found.folder, found.config, inputs, found)


def _run_in(folder: RunFolder, config: Config, inputs: Inputs, resumed: Resumption | None) -> dict[str, Any]:
    with Guard(), driver_log(folder.logs), ray_cluster(), cause_first():
        return run_to_end(_train(config, folder, inputs, resumed))


def show_plan(config: Config) -> None:
    """Check everything as `run` does, print what would start, and start nothing."""
    preflight.require(config, supervised=False, command="train")
    plan.show(config, preflight.check(config))


async def _train(config: Config, folder: RunFolder, inputs: Inputs, resumed: Resumption | None) -> dict[str, Any]:
    phases = Phases()
    history = rewind(folder.path, resumed.version) if resumed else History()
    async with contextlib.AsyncExitStack() as stack:
        with phases.measure("start"), console.status("starting the buffer, the engines and the workers"):
            parts = await _bring_up(config, folder, inputs, resumed, stack)
        bar = stack.enter_context(step_bar("training", config.loop.steps))
        observer = Observer(config, folder=folder, inputs=inputs, phases=phases, bar=bar, parts=parts, history=history)
        stack.callback(observer.close)
        if resumed:
            observer.resumed(resumed.version, resumed.changes)
        driver = loop.Driver(
            config=config.loop,
            steps=TimedSteps(parts.buffer, phases),
            trainer=TimedTrainer(parts.trainer, phases),
            observe=observer.after_step,
            save_every=config.checkpoint.every,
        )
        await _drive(driver, observer, folder, parts)
        await parts.buffer.sweep()
        summary = await observer.summarise()
    report.show(summary, observer.rows, folder)
    return summary


async def _bring_up(
    config: Config,
    folder: RunFolder,
    inputs: Inputs,
    resumed: Resumption | None,
    stack: contextlib.AsyncExitStack,
) -> Parts:
    """Start everything; `stack` ends it in the reverse order."""
    checkpoints = folder.checkpoints(config.checkpoint.keep)
    checkpoints.clear()
    endpoint, server = stack.enter_context(_server(config, folder))
    selection = inputs.selection
    pacing = pacing_of(config, run_id=folder.id, num_prompts=len(inputs.prompts), sources=selection.sources)
    if resumed:
        buffer = await RedisBuffer.resume(endpoint, pacing, resumed.snapshot(pacing))
    else:
        buffer = await RedisBuffer.open(endpoint, pacing, create=True)
    stack.push_async_callback(buffer.close)
    fleet = await stack.enter_async_context(Fleet(config, logs=folder.logs))
    around = Surroundings(router=fleet.router, logs=folder.logs, buffer=(endpoint, pacing), selection=selection)
    workers = Workers(config, around, num_workers=config.rollout.num_workers)
    await stack.enter_async_context(workers)
    trainer = TrainerGroup(
        config,
        logs=folder.logs,
        open_reader=partial(read_from_buffer, endpoint, folder.id),
        engines=fleet.addresses,
        checkpoints=checkpoints,
        start=resumed.checkpoint if resumed else None,
        published=folder.path,
    )
    stack.push_async_callback(trainer.close)
    reader = GroupReader(endpoint, folder.id)
    stack.callback(reader.close)
    return Parts(server=server, buffer=buffer, fleet=fleet, workers=workers, trainer=trainer, read=reader.read)


async def _drive(driver: loop.Driver, observer: Observer, folder: RunFolder, parts: Parts) -> None:
    """Run the loop while a part that dies ends it with its cause."""
    async with asyncio.TaskGroup() as tasks:
        watches = [tasks.create_task(parts.fleet.watch())]
        if parts.server is not None:
            watches.append(tasks.create_task(parts.server.watch()))
        version = await loop.begin(driver)
        run_folder.mark_begun(folder)
        if await observer.before(version):
            await loop.save(driver, version)
        else:
            tasks.create_task(parts.workers.produce())
            version = await loop.consume(driver, version)
            await parts.buffer.close_admission()
            await observer.after(version)
        for watch in watches:
            watch.cancel()


@contextlib.contextmanager
def _server(config: Config, folder: RunFolder) -> Iterator[tuple[Endpoint, EmbeddedServer | None]]:
    """Where the configured server is, or one that lives as long as the run, with that server."""
    settings = config.buffer.model_copy(update={"blobs": config.buffer.blobs or str(folder.path / "blobs")})
    if (external := config.buffer.find_url()) is not None:
        yield Endpoint(external, settings), None
        return
    server = EmbeddedServer(folder.path)
    url = server.start()
    try:
        yield Endpoint(url, settings), server
    finally:
        server.stop()
