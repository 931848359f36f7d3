"""The process that runs a reward function: `python -m slime_rl.rewards.grader NAME READ_FD WRITE_FD`.

It reads requests and writes replies over two inherited pipes, so that whatever the function prints goes to the log.
It ends when its owner does: on end of file, and by the kernel's signal while a function is busy.
"""

from __future__ import annotations

import asyncio
import ctypes
import inspect
import os
import signal
import sys
import traceback
from typing import Any, BinaryIO

import msgpack

from slime_rl.errors import RewardError
from slime_rl.rewards.functions import Answer, RewardFunction, load_reward, to_scores
from slime_rl.types import Prompt

PR_SET_PDEATHSIG = 1
HEADER_BYTES = 4


def main() -> None:
    """Serve requests until the owner closes its end."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    name, read_fd, write_fd = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    with os.fdopen(read_fd, "rb") as requests, os.fdopen(write_fd, "wb") as replies:
        function = load_reward(name)
        write(replies, {"ready": True})
        while (request := read(requests)) is not None:
            write(replies, answer(function, request))


def answer(function: RewardFunction, request: dict[str, Any]) -> dict[str, Any]:
    """Grade one request; whatever the user's code raises becomes an error with its last line of code."""
    prompt = Prompt(**request["prompt"])
    samples = [Answer(**sample) for sample in request["samples"]]
    try:
        values = call(function, prompt, samples)
        scores = to_scores(function.name, values, expected=len(samples))
    except RewardError as error:
        return {"error": str(error)}
    except Exception as error:  # noqa: BLE001  the outermost frame around a user's code
        where = traceback.extract_tb(error.__traceback__)[-1]
        return {"error": f"reward {function.name} raised {error!r} at {where.filename}:{where.lineno}"}
    return {"scores": [{"value": s.value, "parts": dict(s.parts)} for s in scores]}


def call(function: RewardFunction, prompt: Prompt, samples: list[Answer]) -> list[Any]:
    """The values the function returns, one a sample."""
    if function.takes_group:
        return list(resolve(function.call(prompt, samples)))
    return [resolve(function.call(prompt, sample)) for sample in samples]


def resolve(value: Any) -> Any:
    """The result of a coroutine, or the value itself."""
    return asyncio.run(value) if inspect.iscoroutine(value) else value


def read(stream: BinaryIO) -> dict[str, Any] | None:
    """One message, or None at the end of the stream."""
    header = stream.read(HEADER_BYTES)
    if len(header) < HEADER_BYTES:
        return None
    return msgpack.unpackb(stream.read(int.from_bytes(header, "little")), use_list=False)


def write(stream: BinaryIO, message: dict[str, Any]) -> None:
    """One message, sent at once."""
    stream.write(frame(message))
    stream.flush()


def frame(message: dict[str, Any]) -> bytes:
    """A message on a pipe: its length in four little-endian bytes, then msgpack."""
    payload: bytes = msgpack.packb(message)  # pyright: ignore[reportAssignmentType]
    return len(payload).to_bytes(HEADER_BYTES, "little") + payload


if __name__ == "__main__":
    main()
