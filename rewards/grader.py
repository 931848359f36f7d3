"""The process that runs a reward or a filter: `python -m slime_rl.rewards.grader KIND NAME FD`.

It reads requests from an inherited socket and writes replies to it, so that whatever the function prints goes to the
log. The first message is its own: that the function is loaded, or why not. It ends when its owner does: on end of
file, and by the kernel's signal while a function is busy.
"""

from __future__ import annotations

import asyncio
import ctypes
import inspect
import signal
import socket
import sys
import traceback
from typing import Any

from slime_rl.errors import ConfigError, FilterError, RewardError
from slime_rl.rewards.functions import FILTER, KINDS, Answer, Kind, UserFunction, load_function, to_reason, to_scores
from slime_rl.rewards.wire import read, write
from slime_rl.types import Prompt

PR_SET_PDEATHSIG = 1
MAX_REASON = 500


def command(kind: Kind, name: str, fd: int) -> list[str]:
    """The command line of a grader that talks over the inherited socket `fd`."""
    return [sys.executable, "-m", "slime_rl.rewards.grader", kind.word, name, str(fd)]


def main() -> None:
    """Serve requests until the owner closes its end."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    kind, name, fd = KINDS[sys.argv[1]], sys.argv[2], int(sys.argv[3])
    with socket.socket(fileno=fd) as owner, owner.makefile("rb") as requests, owner.makefile("wb") as replies:
        try:
            function = load_function(kind, name)
        except (Exception, SystemExit) as error:
            write(replies, {"error": reason(error)})
            raise
        write(replies, {"ready": True})
        while (request := read(requests)) is not None:
            write(replies, answer(function, request))


def reason(error: BaseException) -> str:
    """Why a function did not load, in one line: the error, and the last line of code that ran."""
    what = " ".join(f"{type(error).__name__}: {error}".rstrip(": ").split())[:MAX_REASON]
    if isinstance(error, ConfigError):
        return what
    where = traceback.extract_tb(error.__traceback__)[-1]
    return f"{what}, at {where.filename}:{where.lineno}"


def answer(function: UserFunction, request: dict[str, Any]) -> dict[str, Any]:
    """Grade or filter one request; whatever the user's code raises becomes an error with its last line of code."""
    prompt = to_prompt(request["prompt"])
    samples = [Answer(**sample) for sample in request["samples"]]
    try:
        if function.kind is FILTER:
            return {"reason": to_reason(function.name, resolve(function.call(prompt, samples)))}
        values = call(function, prompt, samples)
        scores = to_scores(function.name, values, expected=len(samples))
    except (RewardError, FilterError) as error:
        return {"error": str(error)}
    except Exception as error:  # noqa: BLE001  the outermost frame around a user's code
        where = traceback.extract_tb(error.__traceback__)[-1]
        return {"error": f"{function.kind.word} {function.name} raised {error!r} at {where.filename}:{where.lineno}"}
    return {"scores": [{"value": s.value, "parts": dict(s.parts)} for s in scores]}


def to_prompt(fields: dict[str, Any]) -> Prompt:
    """The prompt of a request."""
    messages = fields["messages"]
    return Prompt(**{**fields, "messages": None if messages is None else tuple(messages)})


def call(function: UserFunction, prompt: Prompt, samples: list[Answer]) -> list[Any]:
    """The values the function returns, one a sample."""
    if function.takes_group:
        return list(resolve(function.call(prompt, samples)))
    return [resolve(function.call(prompt, sample)) for sample in samples]


def resolve(value: Any) -> Any:
    """The result of a coroutine, or the value itself."""
    return asyncio.run(value) if inspect.iscoroutine(value) else value


if __name__ == "__main__":
    main()
