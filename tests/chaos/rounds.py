"""Rounds of the chaos test: a small run whose processes are killed at given points, and what must be true after it."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import signal
import time
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import psutil
import redis
from chaos import roles
from chaos.points import Arm, Setting

from slime_rl.buffer.redis_buffer import RedisBuffer
from slime_rl.buffer.server import EmbeddedServer

NUM_WORKERS = 2
TIMEOUT_S = 60.0
POLL_S = 0.005
PAUSE_S = 0.4
"""For how long a process stands still: longer than a lease."""
STEPS = 5
PACING = {
    "groups_per_step": 2,
    "samples_per_prompt": roles.NUM_SAMPLES,
    "num_steps": STEPS,
    "num_prompts": 2 * STEPS + 1,
    "max_epochs": 1,
    "seed": 0,
    "shuffle": True,
    "temperature": 0.7,
    "max_attempts": 20,
    "max_dropped_per_step": 10,
    "lease_s": 0.3,
    "wait_timeout_s": 20.0,
    "slot_timeout_s": 20.0,
}
"""One row of the data is dull and dropped; all others are trained, once."""
KEPT_WITH_GROUPS = ("group", "payload", "segments", "progress", "step")
"""What the names of keys end with, before a number, that a finished group or step leaves none of."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a round left: the rows trained in the final weights, all rows that any step ever trained, and restarts."""

    arms: tuple[Arm, ...]
    fired: int
    trained: list[dict[str, Any]]
    steps: list[tuple[int, list[dict[str, Any]]]]
    dropped: dict[str, int]
    restarts: dict[str, int]
    keys: list[str]
    blobs: list[str]
    log: str


def context() -> Any:
    """Where processes are made from one that has imported everything, so that a start takes milliseconds."""
    found = multiprocessing.get_context("forkserver")
    tests = str(Path(__file__).parents[1])
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [tests, os.environ.get("PYTHONPATH")]))
    found.set_forkserver_preload(["chaos.roles"])
    return found


class Round:
    """The processes of one run, started again when they die."""

    def __init__(
        self, processes: Any, server: tuple[EmbeddedServer, str], folder: Path, max_lag: int, arms: tuple[Arm, ...]
    ):
        self._make = processes
        self._folder = folder
        (folder / "checkpoints").mkdir(parents=True)
        embedded, url = server
        self._setting = Setting(url, server_pid(embedded), folder, PACING | {"max_lag": max_lag}, arms)
        self._driver: BaseProcess | None = None
        self._trainer: BaseProcess | None = None
        self._workers: list[BaseProcess | None] = [None] * NUM_WORKERS
        self._paused: dict[BaseProcess, float] = {}
        self.restarts: dict[str, int] = dict.fromkeys(("driver", "worker"), -1)
        self.restarts["worker"] = -NUM_WORKERS

    def run(self) -> Outcome:
        give_up_at = time.monotonic() + TIMEOUT_S
        try:
            while not (self._folder / "done").exists():
                assert time.monotonic() < give_up_at, f"the round did not end within {TIMEOUT_S:g} s: {self._states()}"
                self._start_again()
                time.sleep(POLL_S)
            assert self._driver is not None
            self._driver.join(10)
            for process in self._paused:  # what comes back late acts before the keys are looked at
                while _stands_still(process):
                    self._give_up_the_paused()
                    time.sleep(POLL_S)
                process.join(10)
                assert process.exitcode is not None, f"{process} goes on though the run is over: {self._states()}"
            return self._outcome()
        finally:
            for process in (self._driver, self._trainer, *self._workers, *self._paused):
                _end(process)

    def _give_up_the_paused(self) -> None:
        """Let others take the place of a process that stands still, and that one go on when they have."""
        for process in (self._driver, *self._workers):
            if process is not None and process not in self._paused and _stands_still(process):
                self._paused[process] = time.monotonic()
        for process, since in self._paused.items():
            if time.monotonic() > since + PAUSE_S and _stands_still(process):
                os.kill(process.ident or 0, signal.SIGCONT)

    def _start_again(self) -> None:
        self._give_up_the_paused()
        if self._driver is None or self._driver in self._paused or not self._driver.is_alive():
            _end(self._trainer)
            self.restarts["driver"] += 1
            self._workers = [worker if worker is not None and worker.is_alive() else None for worker in self._workers]
            ours, theirs = self._make.Pipe()
            self._trainer = self._start(roles.train, theirs)
            self._driver = self._start(roles.drive, ours)
            ours.close()
            theirs.close()
        if self._is_ready():
            for number, worker in enumerate(self._workers):
                if worker is None or (not worker.is_alive() and worker.exitcode != 0):
                    self.restarts["worker"] += 1
                    self._workers[number] = self._start(roles.work, f"worker-{number}")

    def _is_ready(self) -> bool:
        """Whether the driver that runs now has published its first version."""
        ready = self._folder / "ready"
        return self._driver is not None and ready.exists() and json.loads(ready.read_text()) == self._driver.pid

    def _start(self, role: Any, *arguments: Any) -> BaseProcess:
        process = self._make.Process(target=roles.logged, args=(role, self._setting, *arguments), daemon=True)
        process.start()
        return process

    def _states(self) -> str:
        processes = {"driver": self._driver, "trainer": self._trainer, **dict(enumerate(self._workers))}
        states = ", ".join(f"{name} {p.exitcode if p else 'never began'}" for name, p in processes.items())
        log = self._folder / "log"
        return f"{states}; {log.read_text()[-3000:] if log.exists() else ''}"

    def _outcome(self) -> Outcome:
        done = json.loads((self._folder / "done").read_text())
        run_id = json.loads((self._folder / "began").read_text())
        newest = roles.checkpoints_of(self._setting).newest()
        assert newest is not None
        assert newest.version == done["version"] == STEPS
        asyncio.run(_sweep(self._setting, run_id))
        with redis.Redis.from_url(self._setting.url) as client:
            keys = [key.decode() for key in client.scan_iter(f"*{run_id}*")]
        blobs = [path.name for path in (self._folder / "blobs").rglob("*") if path.is_file()]
        lines = (self._folder / "steps").read_text().splitlines()
        return Outcome(
            arms=self._setting.arms,
            fired=sum(self._setting.fired(number).exists() for number in range(len(self._setting.arms))),
            trained=json.loads((newest.trainer / "trained").read_text()),
            steps=[(step, rows) for step, rows in map(json.loads, lines)],
            dropped=done["dropped"],
            restarts=self.restarts,
            keys=keys,
            blobs=blobs,
            log=(self._folder / "log").read_text(),
        )


def check(outcome: Outcome, *, max_lag: int) -> None:
    """Nothing is lost, nothing is trained twice, nothing is too old, and steps that are taken again are the same."""
    trained = [(row["prompt"], sample, row["step"]) for row in outcome.trained for sample in row["samples"]]
    by_prompt = {prompt: step for prompt, _, step in trained}
    expected = {row for row in range(PACING["num_prompts"]) if row != roles.DULL}
    assert by_prompt.keys() == expected
    assert sorted(trained) == sorted((p, s, by_prompt[p]) for p in expected for s in range(roles.NUM_SAMPLES))
    assert [row["step"] for row in outcome.trained] == [step for step in range(STEPS) for _ in range(2)]
    assert outcome.dropped == {"equal rewards, none above 0": 1}
    assert all(row["step"] - row["oldest"] <= max_lag for row in outcome.trained)
    if not any(arm.forget for arm in outcome.arms):
        taken: dict[int, Any] = {}
        for step, rows in outcome.steps:
            assert taken.setdefault(step, rows) == rows, f"step {step} was taken again with other groups"
    assert not [key for key in outcome.keys if key.rpartition(":")[0].endswith(KEPT_WITH_GROUPS)]
    assert outcome.blobs == []


def server_pid(server: EmbeddedServer) -> int:
    """The process of an embedded server, which its watcher has started."""
    assert server._watcher is not None
    [process] = psutil.Process(server._watcher.pid).children()
    return process.pid


async def _sweep(setting: Setting, run_id: str) -> None:
    """What a run does at its end, when no worker is left."""
    buffer = await RedisBuffer.join(roles.endpoint_of(setting), run_id)
    await buffer.sweep()
    await buffer.close()


def _stands_still(process: BaseProcess) -> bool:
    try:
        return psutil.Process(process.ident).status() == psutil.STATUS_STOPPED
    except psutil.NoSuchProcess:
        return False


def _end(process: BaseProcess | None) -> None:
    if process is not None and process.is_alive():
        process.kill()
        process.join(10)
