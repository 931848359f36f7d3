"""The processes of the chaos test: a worker, a driver and a trainer, around the real loop, buffer and checkpoints.

What a step has trained is the trainer's whole state: a list that its checkpoints hold. The engines are a file with the
version that they serve.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import json
import logging
import os
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from chaos.points import Points, Setting, armed

from slime_rl import loop
from slime_rl.buffer.endpoint import Endpoint
from slime_rl.buffer.pacing import Pacing
from slime_rl.buffer.reader import GroupReader
from slime_rl.buffer.snapshot import Snapshot, decode_snapshot
from slime_rl.config import BufferConfig, LoopConfig
from slime_rl.errors import TrainerError
from slime_rl.interfaces import Drafts
from slime_rl.journal.checkpoints import Checkpoint, Checkpoints
from slime_rl.rewards.filters import BuiltIn
from slime_rl.rollout.segments import by_sample, join
from slime_rl.types import Finish, Prompt, Sample, Segment, Span, StepReport, Version

DULL = 3
"""The row of the data whose samples all have the same reward: it is dropped."""
NUM_SAMPLES = 2
PART = 4
PARTS = 3
PART_S = 0.012
"""How long a part takes: a worker lives for some heartbeats."""
SAVE_EVERY = 2


def write(path, value: Any) -> None:
    """Replace a file as a whole."""
    aside = path.with_name(f"{path.name}.{os.getpid()}")
    aside.write_text(json.dumps(value))
    aside.replace(path)


def endpoint_of(setting: Setting) -> Endpoint:
    """Arrays of samples go to blobs, whatever their size."""
    blobs = str(setting.folder / "blobs")
    return Endpoint(setting.url, BufferConfig(blobs=blobs, inline_limit=0, reconnect_timeout_s=20.0))


def loop_config(setting: Setting) -> LoopConfig:
    pacing = setting.pacing
    return LoopConfig(
        steps=pacing["num_steps"],
        groups_per_step=pacing["groups_per_step"],
        max_lag=pacing["max_lag"],
        samples_per_prompt=NUM_SAMPLES,
        lease_s=pacing["lease_s"],
        filters=("equal_rewards",),
    )


def logged(role: Callable[..., None], setting: Setting, *arguments: Any) -> None:
    """Play a role, with what it says in the round's log."""
    with (setting.folder / "log").open("a", buffering=1) as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        role(setting, *arguments)


def work(setting: Setting, name: str) -> None:
    """A rollout worker."""
    asyncio.run(_work(setting, name))


async def _work(setting: Setting, name: str) -> None:
    points = Points(setting, "worker")
    run_id = json.loads((setting.folder / "began").read_text())
    buffer = await armed(points).join(endpoint_of(setting), run_id)

    async def program(
        prompt: Prompt, *, num_samples: int, temperature: float, drafts: Drafts | None = None
    ) -> list[Sample]:
        assert drafts is not None
        found = by_sample(await drafts.segments(), num_samples)
        for index, parts in enumerate(found):
            while len(parts) < PARTS:
                parts.append(_part(prompt, index, len(parts), temperature, _served(setting)))
                await asyncio.sleep(PART_S)
                if len(parts) < PARTS:
                    await drafts.extend(parts[-1])
        arrays = {"experts": np.full((PART * PARTS, 2), prompt.index, np.uint8)}
        return [dataclasses.replace(join(parts, text=""), arrays=arrays) for parts in found]

    async def reward(prompt: Prompt, samples: list[Sample]) -> list[Sample]:
        return [dataclasses.replace(s, reward=0.0 if prompt.index == DULL else float(s.index)) for s in samples]

    worker = loop.Worker(
        name=f"{name}-{os.getpid()}",
        config=loop_config(setting),
        prompts=[Prompt(index=i, text=str(i)) for i in range(setting.pacing["num_prompts"])],
        slots=buffer,
        partials=buffer,
        program=program,
        reward=reward,  # pyright: ignore[reportArgumentType]
        filters=[BuiltIn(name) for name in loop_config(setting).filters],
        episodes=asyncio.Semaphore(2),
    )
    await loop.produce(worker)


def _served(setting: Setting) -> Version:
    return Version(json.loads((setting.folder / "served").read_text()))


def _part(prompt: Prompt, index: int, number: int, temperature: float, version: Version) -> Segment:
    """Tokens that say which prompt, sample and place they are of; the first one is what the model read."""
    tokens = np.arange(PART, dtype=np.int32) + 1000 * prompt.index + 100 * index + PART * number
    loss_mask = np.arange(PART) >= (1 if number == 0 else 0)
    return Segment(
        index=index,
        start=PART * number,
        tokens=tokens,
        loss_mask=loss_mask,
        logprobs=np.where(loss_mask, -1.0, 0.0).astype(np.float32),
        versions=(Span(version, 0, PART),),
        temperature=temperature,
        finish=Finish.STOP if number == PARTS - 1 else None,
    )


class Ranks:
    """The trainer as the driver sees it: another process, whose end is an error."""

    def __init__(self, setting: Setting, points: Points, connection: Connection, start: Checkpoint | None) -> None:
        self._setting, self._points, self._connection, self._start = setting, points, connection, start

    async def load(self) -> Version:
        return Version(self._ask("load", self._start))

    async def step(self, assignment) -> StepReport:
        ids = [group.id for group in assignment.groups]
        version = self._ask("step", assignment.step, ids)
        return StepReport(version=Version(version), sums={}, counts={})

    async def publish(self, version: Version) -> None:
        with self._points.around("serve"):
            write(self._setting.folder / "served", version)

    async def save(self, version: Version, snapshot: bytes) -> None:
        with self._points.around("save"), checkpoints_of(self._setting).write(version, snapshot) as checkpoint:
            if checkpoint is not None:
                self._ask("save", checkpoint)
                self._points.reach("rename:before")

    def _ask(self, *question: Any) -> Any:
        try:
            self._connection.send(question)
            return self._connection.recv()
        except (EOFError, ConnectionError) as error:
            raise TrainerError("the trainer died") from error


def checkpoints_of(setting: Setting) -> Checkpoints:
    return Checkpoints(setting.folder / "checkpoints", export=setting.folder / "export", keep=2)


def drive(setting: Setting, connection: Connection) -> None:
    """The driver: begins the run, or goes on with it from its newest checkpoint."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s driver %(message)s")
    asyncio.run(_drive(setting, connection))


async def _drive(setting: Setting, connection: Connection) -> None:
    points = Points(setting, "driver")
    buffers, began = armed(points), setting.folder / "began"
    checkpoints = checkpoints_of(setting)
    checkpoints.clear()
    checkpoint = checkpoints.newest()
    if began.exists():
        pacing = Pacing(**setting.pacing, run_id=json.loads(began.read_text()))
        snapshot = Snapshot.initial(pacing.run_id, pacing.kept)
        if checkpoint is not None:
            snapshot = decode_snapshot(checkpoint.buffer.read_bytes(), name="snapshot")
        buffer = await buffers.resume(endpoint_of(setting), pacing, snapshot)
    else:
        pacing = Pacing(**setting.pacing, run_id=f"{setting.folder.name}-{os.getpid()}")
        buffer = await buffers.open(endpoint_of(setting), pacing, create=True)

    async def observe(assignment, report) -> bool:
        return False

    driver = loop.Driver(
        config=loop_config(setting),
        steps=buffer,
        trainer=Ranks(setting, points, connection, checkpoint),
        observe=observe,
        save_every=SAVE_EVERY,
    )
    version = await loop.begin(driver)
    with points.around("begin"):
        write(began, pacing.run_id)
    write(setting.folder / "ready", os.getpid())
    version = await loop.consume(driver, version)
    await buffer.close_admission()
    write(setting.folder / "done", {"version": version, "dropped": dict((await buffer.status()).dropped)})


def train(setting: Setting, connection: Connection) -> None:
    """The trainer: answers the driver until it ends."""
    points = Points(setting, "trainer")
    reader: GroupReader | None = None
    trained: list[dict[str, Any]] = []
    version = 0
    while True:
        try:
            question, *arguments = connection.recv()
        except EOFError:
            return
        with points.around(question):
            if question == "load":
                [checkpoint] = arguments
                if checkpoint is not None:
                    trained = json.loads((checkpoint.trainer / "trained").read_text())
                    version = checkpoint.version
            elif question == "step":
                step, ids = arguments
                assert step == version, f"step {step} from version {version}"
                if reader is None:
                    reader = GroupReader(endpoint_of(setting), json.loads((setting.folder / "began").read_text()))
                rows = [_row(step, group) for group in reader.read(ids)]
                with (setting.folder / "steps").open("a") as audit:
                    audit.write(json.dumps([step, rows]) + "\n")
                trained += rows
                version += 1
            else:
                [checkpoint] = arguments
                (checkpoint.trainer / "trained").write_text(json.dumps(trained))
        connection.send(version)


def _row(step: int, group) -> dict[str, Any]:
    """What is trained on a group: enough to tell it from any other, and to see whether it is whole."""
    for sample in group.samples:
        place = np.arange(PART * PARTS, dtype=np.int32)
        assert np.array_equal(sample.tokens, place + 1000 * group.prompt_index + 100 * sample.index), sample.tokens
        assert (sample.arrays["experts"] == group.prompt_index).all()
    digest = hashlib.sha256(b"".join(s.tokens.tobytes() + str(s.versions).encode() for s in group.samples))
    return {
        "step": step,
        "group": group.id,
        "prompt": group.prompt_index,
        "samples": [sample.index for sample in group.samples],
        "oldest": min(sample.oldest for sample in group.samples),
        "digest": digest.hexdigest()[:16],
    }
