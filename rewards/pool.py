"""Runs a reward function in processes of its own, so that a slow or crashing grader harms nobody else."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import msgpack

from slime_rl.config import RewardConfig
from slime_rl.errors import RewardError
from slime_rl.rewards.grader import HEADER_BYTES, frame
from slime_rl.types import Prompt, Sample

START_TIMEOUT_S = 60.0


class GraderPool:
    """Scores groups on `config.num_processes` grader processes; implements interfaces.Reward.

    A call that outlasts `config.timeout_s` costs its grader's life and is a RewardError; another grader takes over.
    """

    def __init__(self, config: RewardConfig, *, log: Path) -> None:
        self._config = config
        self._log = log
        self._idle: asyncio.Queue[Grader] = asyncio.Queue()
        self._all: set[Grader] = set()

    async def __aenter__(self) -> Self:
        with self._log.open("ab") as log:
            graders = [Grader.start(self._config.function, log=log) for _ in range(self._config.num_processes)]
            for grader in await asyncio.gather(*graders):
                self._admit(grader)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.gather(*(grader.stop() for grader in self._all))

    async def __call__(self, prompt: Prompt, samples: Sequence[Sample]) -> list[Sample]:
        """The samples with their rewards set, in order."""
        request = {"prompt": _prompt_fields(prompt), "samples": [_answer_fields(s) for s in samples]}
        scores = await self._grade(request, name=self._config.function, index=prompt.index)
        return [
            replace(sample, reward=score["value"], reward_parts=score["parts"])
            for sample, score in zip(samples, scores, strict=True)
        ]

    async def _grade(self, request: dict[str, Any], *, name: str, index: int) -> Sequence[dict[str, Any]]:
        grader = await self._idle.get()
        try:
            async with asyncio.timeout(self._config.timeout_s):
                reply = await grader.ask(request)
        except TimeoutError:
            await self._replace(grader)
            raise RewardError(
                f"reward {name} took over {self._config.timeout_s:g} s on prompt {index} and was ended"
            ) from None
        except (EOFError, ConnectionError):
            await self._replace(grader)
            raise RewardError(f"reward {name} ended its process on prompt {index}; see {self._log}") from None
        except asyncio.CancelledError:
            self._all.discard(grader)
            await grader.stop()
            raise
        self._idle.put_nowait(grader)
        if "error" in reply:
            raise RewardError(reply["error"])
        return reply["scores"]

    async def _replace(self, grader: Grader) -> None:
        self._all.discard(grader)
        await grader.stop()
        with self._log.open("ab") as log:
            self._admit(await Grader.start(self._config.function, log=log))

    def _admit(self, grader: Grader) -> None:
        self._all.add(grader)
        self._idle.put_nowait(grader)


class Grader:
    """One grader process and the two pipes to it."""

    def __init__(
        self, process: asyncio.subprocess.Process, replies: asyncio.StreamReader, requests: asyncio.WriteTransport
    ) -> None:
        self._process = process
        self._replies = replies
        self._requests = requests

    @classmethod
    async def start(cls, function: str, *, log: IO[bytes]) -> Self:
        """A process that has loaded `function`; raises RewardError where it cannot."""
        loop = asyncio.get_running_loop()
        request_read, request_write = os.pipe()
        reply_read, reply_write = os.pipe()
        module = "slime_rl.rewards.grader"
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", module, function, str(request_read), str(reply_write)),
            pass_fds=(request_read, reply_write),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        os.close(request_read)
        os.close(reply_write)
        reader = asyncio.StreamReader()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(reply_read, "rb"))
        writer, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, os.fdopen(request_write, "wb"))
        grader = cls(process, reader, writer)
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                await grader._reply()
        except (TimeoutError, EOFError) as error:
            await grader.stop()
            raise RewardError(f"reward {function} could not be loaded ({error!r}); see {log.name}") from None
        return grader

    async def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """The reply to one request; raises EOFError if the process ended."""
        self._requests.write(frame(request))
        return await self._reply()

    async def stop(self) -> None:
        """End the process, busy or not."""
        self._requests.abort()
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()

    async def _reply(self) -> dict[str, Any]:
        header = await self._replies.readexactly(HEADER_BYTES)
        return msgpack.unpackb(await self._replies.readexactly(int.from_bytes(header, "little")))


def _prompt_fields(prompt: Prompt) -> dict[str, Any]:
    return {
        "index": prompt.index,
        "messages": prompt.messages,
        "text": prompt.text,
        "answer": prompt.answer,
        "metadata": dict(prompt.metadata),
    }


def _answer_fields(sample: Sample) -> dict[str, Any]:
    return {"text": sample.text, "finish_reason": str(sample.finish), "num_tokens": sample.num_trained}
