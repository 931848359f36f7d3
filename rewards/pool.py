"""Runs a reward or a filter in processes of its own, so that a slow or crashing one harms nobody else."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from slime_rl.config import RewardConfig
from slime_rl.errors import RewardError
from slime_rl.rewards.functions import FILTER, REWARD, Kind
from slime_rl.rewards.grader import command
from slime_rl.rewards.wire import HEADER_BYTES, frame, unframe
from slime_rl.types import Prompt, Sample

START_TIMEOUT_S = 60.0
END_TIMEOUT_S = 10.0

log = logging.getLogger(__name__)


class FunctionPool:
    """Asks a user's function on `num_processes` grader processes.

    Each call takes one of so many places and gives it back, whatever happens: with its grader, or empty where the
    grader outlasted `timeout_s`, died or was busy when the call was cancelled. Who takes an empty place starts
    another grader, and an error of the function's kind says if that fails. A call waits for a place only, and the one
    that holds it gives it back within the sum of `timeout_s`, START_TIMEOUT_S and END_TIMEOUT_S.
    """

    def __init__(self, kind: Kind, name: str, *, timeout_s: float, num_processes: int, log: Path) -> None:
        self._kind = kind
        self._name = name
        self._timeout_s = timeout_s
        self._num_processes = num_processes
        self._log = log
        self._places: asyncio.Queue[Grader | None] = asyncio.Queue()
        self._graders: set[Grader] = set()
        self._is_closed = False

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as undo:
            undo.push_async_callback(self._close)
            for grader in await self._start_all():
                self._places.put_nowait(grader)
            undo.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close()

    async def _ask(self, prompt: Prompt, samples: Sequence[Sample]) -> dict[str, Any]:
        """What the function says to a group; raises an error of its kind."""
        what, index = f"{self._kind.word} {self._name}", prompt.index
        try:
            request = frame({"prompt": _prompt_fields(prompt), "samples": [_answer_fields(s) for s in samples]})
        except (TypeError, ValueError) as error:
            raise self._kind.error(f"prompt {index} cannot be sent to {what}: {error}") from None
        try:
            async with self._grader() as grader, asyncio.timeout(self._timeout_s):
                reply = await grader.ask(request)
        except TimeoutError:
            raise self._kind.error(f"{what} took over {self._timeout_s:g} s on prompt {index} and was ended") from None
        except (EOFError, ConnectionError):
            raise self._kind.error(f"{what} ended its process on prompt {index}; see {self._log}") from None
        if "error" in reply:
            raise self._kind.error(reply["error"])
        return reply

    @asynccontextmanager
    async def _grader(self) -> AsyncIterator[Grader]:
        """A grader for one request; one that did not answer it is ended, and its place stays empty."""
        grader = await self._places.get()
        try:
            if grader is None:
                grader = await self._start()
            yield grader
        except BaseException:
            self._places.put_nowait(None)
            if grader is not None:
                await self._end(grader)
            raise
        self._places.put_nowait(grader)

    async def _start_all(self) -> list[Grader]:
        try:
            async with asyncio.TaskGroup() as tasks:
                starts = [tasks.create_task(self._start()) for _ in range(self._num_processes)]
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        return [start.result() for start in starts]

    async def _start(self) -> Grader:
        with self._log.open("ab") as file:
            grader = await Grader.start(self._kind, self._name, log=file)
        self._graders.add(grader)  # from here on `_close` ends it, even if a second cancellation hinders `_end`
        try:
            await grader.wait_ready()
            if self._is_closed:
                raise self._kind.error(f"{self._kind.word} {self._name} was asked after its graders were ended")
        except BaseException:
            await self._end(grader)
            raise
        return grader

    async def _end(self, grader: Grader) -> None:
        await grader.stop()
        self._graders.discard(grader)

    async def _close(self) -> None:
        self._is_closed = True
        await asyncio.gather(*(self._end(grader) for grader in set(self._graders)))


class GraderPool(FunctionPool):
    """Scores groups; implements interfaces.Reward."""

    def __init__(self, config: RewardConfig, *, log: Path) -> None:
        limits = {"timeout_s": config.timeout_s, "num_processes": config.num_processes}
        super().__init__(REWARD, config.function, **limits, log=log)

    async def __call__(self, prompt: Prompt, samples: Sequence[Sample]) -> list[Sample]:
        """The samples with their rewards set, in order; see `Reward`."""
        scores = (await self._ask(prompt, samples))["scores"]
        scored = [
            replace(sample, reward=score["value"], reward_parts=score["parts"])
            for sample, score in zip(samples, scores, strict=True)
            if "error" not in score
        ]
        if faults := [score["error"] for score in scores if "error" in score]:
            raise RewardError(f"{faults[0]} ({len(faults)} of {len(samples)} samples)", scored=scored)
        return scored


class FilterPool(FunctionPool):
    """Says which scored groups are dropped; implements interfaces.Filter."""

    def __init__(self, name: str, *, timeout_s: float, log: Path) -> None:
        super().__init__(FILTER, name, timeout_s=timeout_s, num_processes=1, log=log)

    async def __call__(self, prompt: Prompt, samples: Sequence[Sample]) -> str | None:
        """Why the group is dropped, or None."""
        return (await self._ask(prompt, samples))["reason"]


class Grader:
    """One grader process, which leads a process group of its own, and the socket to it."""

    def __init__(
        self,
        kind: Kind,
        name: str,
        process: asyncio.subprocess.Process,
        replies: asyncio.StreamReader,
        requests: asyncio.StreamWriter,
        *,
        log_path: str,
    ) -> None:
        self._kind, self._name = kind, name
        self._process = process
        self._replies = replies
        self._requests = requests
        self._log_path = log_path

    @classmethod
    async def start(cls, kind: Kind, name: str, *, log: IO[bytes]) -> Self:
        """A process that loads the function; raises an error of its kind if the system gives none."""
        ours, theirs = socket.socketpair()
        with theirs:
            replies, requests = await asyncio.open_connection(sock=ours)
            try:
                process = await asyncio.create_subprocess_exec(
                    *command(kind, name, theirs.fileno()),
                    pass_fds=(theirs.fileno(),),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            except BaseException as error:
                requests.transport.abort()
                if isinstance(error, OSError):
                    raise kind.error(f"{kind.word} {name} got no process: {error}") from None
                raise
        return cls(kind, name, process, replies, requests, log_path=log.name)

    async def wait_ready(self) -> None:
        """Wait until the function is loaded; raises an error of its kind if it is not within START_TIMEOUT_S."""
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                reply = await self._reply()
        except TimeoutError:
            reply = {"error": f"it took over {START_TIMEOUT_S:g} s"}
        except (EOFError, ConnectionError):
            reply = {"error": "it ended its process"}
        if "error" in reply:
            what = f"{self._kind.word} {self._name} could not be loaded"
            raise self._kind.error(f"{what} ({reply['error']}); see {self._log_path}")

    async def ask(self, request: bytes) -> dict[str, Any]:
        """The reply to one framed request; raises EOFError or ConnectionError if the process ended."""
        self._requests.write(request)
        await self._requests.drain()
        return await self._reply()

    async def stop(self) -> None:
        """End the process and those that it started, busy or not."""
        self._requests.transport.abort()
        if self._process.returncode is None:  # else the id may be another group's by now
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        try:
            async with asyncio.timeout(END_TIMEOUT_S):
                await self._process.wait()
        except TimeoutError:
            log.warning("grader process %d is left %g s after SIGKILL", self._process.pid, END_TIMEOUT_S)

    async def _reply(self) -> dict[str, Any]:
        header = await self._replies.readexactly(HEADER_BYTES)
        return unframe(await self._replies.readexactly(int.from_bytes(header, "little")))


def _prompt_fields(prompt: Prompt) -> dict[str, Any]:
    return {
        "index": prompt.index,
        "messages": prompt.messages,
        "text": prompt.text,
        "answer": prompt.answer,
        "metadata": dict(prompt.metadata),
    }


def _answer_fields(sample: Sample) -> dict[str, Any]:
    return {
        "text": sample.text,
        "finish_reason": str(sample.finish),
        "num_tokens": sample.num_trained,
        "reward": sample.reward,
    }
