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
from collections.abc import Callable, Iterable
from functools import partial
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
    """Grade or filter one request; a sample that cannot be graded by itself has an error in place of its score."""
    prompt = to_prompt(request["prompt"])
    samples = [Answer(**sample) for sample in request["samples"]]
    if function.kind is FILTER:
        return attempt(function, lambda: {"reason": to_reason(function.name, call(function, prompt, samples))})
    if function.takes_group:
        return attempt(function, lambda: {"scores": grades(function, call(function, prompt, samples), len(samples))})
    return {"scores": [attempt(function, partial(grade, function, prompt, sample)) for sample in samples]}


def attempt(function: UserFunction, act: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What `act` returns; whatever the user's code raises becomes an error with its last line of code."""
    try:
        return act()
    except (RewardError, FilterError) as error:
        return {"error": str(error)}
    except Exception as error:  # noqa: BLE001  the outermost frame around a user's code
        where = traceback.extract_tb(error.__traceback__)[-1]
        return {"error": f"{function.kind.word} {function.name} raised {error!r} at {where.filename}:{where.lineno}"}


def grade(function: UserFunction, prompt: Prompt, sample: Answer) -> dict[str, Any]:
    """The score of one sample."""
    return grades(function, [call(function, prompt, sample)], 1)[0]


def grades(function: UserFunction, values: Iterable[Any], expected: int) -> list[dict[str, Any]]:
    """What the function returned as scores that can be sent."""
    scores = to_scores(function.name, [*values], expected=expected)
    return [{"value": score.value, "parts": dict(score.parts)} for score in scores]


def to_prompt(fields: dict[str, Any]) -> Prompt:
    """The prompt of a request."""
    messages = fields["messages"]
    return Prompt(**{**fields, "messages": None if messages is None else tuple(messages)})


def call(function: UserFunction, prompt: Prompt, seen: Answer | list[Answer]) -> Any:
    """The value the function returns, or its coroutine."""
    value = function.call(prompt, seen)
    return asyncio.run(value) if inspect.iscoroutine(value) else value


if __name__ == "__main__":
    main()
