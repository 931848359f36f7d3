"""Two processes that are trainer ranks for as long as the tests of this folder run."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slime_rl import errors
from slime_rl.errors import SlimeError
from slime_rl.journal.checkpoints import Checkpoint
from slime_rl.types import Finish, Group, Sample, Span, Version

TIMEOUT_S = 180.0


class RankProcess:
    """A worker process, asked for one scenario at a time."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._start()

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        with self._log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("worker.py")), str(theirs.fileno())],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=[theirs.fileno()],
                env=os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
            )
        theirs.close()
        self._connection = Connection(ours.detach())

    def ask(self, scenario: str, **arguments: Any) -> None:
        if self._connection.closed:  # a test before this one failed
            self._start()
        self._connection.send((scenario, arguments))

    def outcome(self) -> tuple[SlimeError | None, Any]:
        """Wait for the answer, or the error of slime_rl that came instead of it."""
        if not self._connection.poll(TIMEOUT_S):
            self.close()
            pytest.fail(f"no answer within {TIMEOUT_S:g} s:\n{self._log.read_text()[-4000:]}")
        try:
            fault, answer = self._connection.recv()
        except (EOFError, ConnectionResetError):
            self.close()
            pytest.fail(f"the rank process ended:\n{self._log.read_text()[-4000:]}")
        return (getattr(errors, fault[0])(fault[1]) if fault else None), answer

    def close(self) -> None:
        """Let the process end by itself, with the children that multiprocessing ends for it; a stuck one is killed."""
        self._connection.close()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(timeout=30)
        assert self._process.stdin is not None
        self._process.stdin.close()


class Ranks:
    """All the rank processes; what they are asked together they do together."""

    def __init__(self, processes: Sequence[RankProcess]) -> None:
        self.processes = processes

    def one(self, scenario: str, **arguments: Any) -> Any:
        """The answer of one process."""
        self.processes[0].ask(scenario, **arguments)
        return _answers([self.processes[0].outcome()])[0]

    def both(self, scenario: str, each: Sequence[dict[str, Any]], **arguments: Any) -> list[Any]:
        """The answers of ranks that meet at one port, `each` with arguments of its own."""
        port = _free_port()
        for rank, (process, own) in enumerate(zip(self.processes, each, strict=True)):
            process.ask(scenario, rank=rank, world_size=len(each), port=port, **own, **arguments)
        return _answers([process.outcome() for process in self.processes])

    def train(self, config: dict[str, Any], groups: Sequence[Group], num_steps: int, **arguments: Any) -> Any:
        """Steps of one rank that reads every group."""
        shares = [[group.id for group in groups]] * num_steps
        return self.alone("train", config=config, groups=groups, shares=shares, **arguments)

    def alone(self, scenario: str, **arguments: Any) -> Any:
        """The answer of a rank without peers."""
        return self.one(scenario, rank=0, world_size=1, port=_free_port(), **arguments)


def _answers(outcomes: Sequence[tuple[SlimeError | None, Any]]) -> list[Any]:
    for error, _ in outcomes:
        if error is not None:
            raise error
    return [answer for _, answer in outcomes]


@pytest.fixture(scope="session")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    folder = tmp_path_factory.mktemp("ranks")
    processes = [RankProcess(folder / f"{rank}.log") for rank in range(2)]
    yield Ranks(processes)
    for process in processes:
        process.close()


@pytest.fixture(scope="session")
def models(ranks: Ranks, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A tiny model folder of each family, with tied and with separate heads."""
    folder = tmp_path_factory.mktemp("models")
    kinds = {"qwen3": True, "qwen2": True, "llama": False, "qwen3-untied": False, "llama-tied": True}
    for name, tied in kinds.items():
        kind = name.partition("-")[0]
        ranks.one("make_model", kind=kind, folder=str(folder / name), tie_word_embeddings=tied)
    return {name: str(folder / name) for name in kinds}


@pytest.fixture
def changed_model(tmp_path: Path) -> Callable[[str, dict[str, Any]], str]:
    """Copies a model folder and changes its config.json."""

    def change(model: str, values: dict[str, Any]) -> str:
        folder = shutil.copytree(model, tmp_path / "changed")
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | values))
        return str(folder)

    return change


@pytest.fixture
def new_checkpoint(tmp_path: Path) -> Callable[[int], Checkpoint]:
    """The folder of a version's checkpoint, made where it is not there yet."""

    def make(version: int) -> Checkpoint:
        checkpoint = Checkpoint(tmp_path / f"version-{version}", Version(version))
        checkpoint.trainer.mkdir(parents=True, exist_ok=True)
        return checkpoint

    return make


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


@pytest.fixture(scope="session")
def new_config() -> Callable[..., dict[str, Any]]:
    return _config


@pytest.fixture(scope="session")
def new_groups() -> Callable[..., list[Group]]:
    return _groups


def _config(folder: str, /, **sections: dict[str, Any]) -> dict[str, Any]:
    """A configuration in float32 whose step is large enough to tell.

    So is `eps`: with a small one, Adam makes whole steps of what rounding does to gradients near zero.
    """
    trainer: dict[str, Any] = {"lr": 1e-3, "weight_decay": 0.1, "clip_grad": 0.5, "eps": 1e-4} | sections.get(
        "trainer", {}
    )
    return {
        "run": {"folder": "unused"},
        "model": {"path": folder, "dtype": "float32"} | sections.get("model", {}),
        "data": {"path": "unused"},
        "loop": {"steps": 10},
        "trainer": trainer,
        "objective": sections.get("objective", {}),
    }


def _groups(
    sizes: Sequence[int],
    *,
    lengths: tuple[int, int] = (4, 30),
    temperature: float = 1.0,
    seed: int = 0,
    vocab: int = 97,
) -> list[Group]:
    """Ragged groups with rewards, holes in the masks, and log-probs near those of a random policy."""
    generator = np.random.default_rng(seed)
    groups = []
    for id, size in enumerate(sizes):
        samples = []
        for index in range(size):
            length = int(generator.integers(*lengths))
            mask = (np.arange(length) >= 2) & (generator.random(length) < 0.8)
            samples.append(
                Sample(
                    index=index,
                    trajectory=index,
                    tokens=generator.integers(0, vocab, length).astype(np.int32),
                    loss_mask=mask,
                    logprobs=np.where(mask, generator.normal(-4.0, 1.0, length), 0.0).astype(np.float32),
                    versions=(Span(Version(0), 0, length),),
                    temperature=temperature,
                    finish=Finish.STOP,
                    reward=float(generator.integers(0, 3)),
                )
            )
        groups.append(Group(id=id, prompt_index=id, attempt=0, samples=tuple(samples)))
    return groups
