"""SGLang's HTTP interface: every field that is sent to an engine or read from its replies stands in this module.

Checked against sglang 0.5.23. The router forwards `/generate` and `/health`; all else is asked of an engine itself.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, Self

import aiohttp
import numpy as np
import orjson
from numpy.typing import NDArray

from slime_rl.errors import EngineError
from slime_rl.rollout.address import Address
from slime_rl.types import Finish, Span, Version

CONNECT_TIMEOUT_S = 10.0
READY_TIMEOUT_S = 5.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 5.0
AWAY = 502, 503
"""What a router answers that has no engine, or has lost the one it had asked."""
NO_ANSWER = (aiohttp.ClientError, TimeoutError, OSError)


log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Completion:
    """What an engine wrote after a prompt of P tokens.

    `logprobs` are of the sampled tokens at the temperature of the request. `versions` covers the written tokens by
    their places in the whole sequence, so the first one is P. An aborted completion holds what there was of it.
    """

    tokens: NDArray[np.int32]  # [written]
    logprobs: NDArray[np.float32]  # [written]
    versions: tuple[Span, ...]
    finish: Finish


def generate_body(
    prompt: Sequence[int],
    *,
    num_samples: int,
    temperature: float,
    max_new_tokens: int,
    stop_token_ids: Sequence[int],
    seed: int | None = None,
) -> bytes:
    """The JSON that asks for completions of one prompt, with their log-probs."""
    sampling: dict[str, Any] = {
        "n": num_samples,
        "temperature": temperature,
        "max_new_tokens": max_new_tokens,
        "stop_token_ids": list(stop_token_ids),
    }
    if seed is not None:
        sampling["sampling_seed"] = seed
    return orjson.dumps({"input_ids": list(prompt), "sampling_params": sampling, "return_logprob": True})


class _AwayError(EngineError):
    """Nothing took the request, or what took it is gone."""


class EngineHttp:
    """A client of one engine, or of the router before them; used as `async with EngineHttp(...) as http`.

    Each call is bounded by `timeout_s` and raises EngineError that names the engine if it does not answer, or
    answers with an error. One that is `serial` asks for one completion after another, each within its own time.
    """

    def __init__(self, address: Address, *, timeout_s: float, serial: bool = False) -> None:
        self.address = address
        self._timeout_s = timeout_s
        self._turns = asyncio.Lock() if serial else nullcontext()
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        timeout = aiohttp.ClientTimeout(total=self._timeout_s, sock_connect=CONNECT_TIMEOUT_S)
        self._session = aiohttp.ClientSession(
            base_url=self.address.url, timeout=timeout, connector=aiohttp.TCPConnector(limit=0)
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._open_session.close()

    async def generate(
        self,
        prompt: Sequence[int],
        *,
        num_samples: int,
        temperature: float,
        max_new_tokens: int,
        stop_token_ids: Sequence[int],
        seed: int | None = None,
    ) -> list[Completion]:
        """Sample `num_samples` completions of one prompt in one request, by a `seed` where the engine heeds them.

        While no engine is there to take it, it is sent again: that is no failure of the prompt.
        A token id outside the model's vocabulary ends an SGLang server, so `prompt` must come from its tokenizer.
        """
        body = generate_body(
            prompt,
            num_samples=num_samples,
            temperature=temperature,
            max_new_tokens=max_new_tokens,
            stop_token_ids=stop_token_ids,
            seed=seed,
        )
        async with self._turns:
            reply = await self._ask_until_taken("/generate", body)
        replies = reply if isinstance(reply, list) else [reply]
        if len(replies) != num_samples:
            raise self._error("/generate", f"expected {num_samples} completions, got {len(replies)}")
        return [self._completion(one, offset=len(prompt)) for one in replies]

    async def abort_all(self) -> None:
        """End every request in flight; each returns what it has with finish `abort`."""
        await self._post("/abort_request", {"abort_all": True}, admin=True)

    async def pause(self, mode: Literal["retract", "in_place"]) -> None:
        """Stop sampling and hold every request; `retract` takes them off the cache, so that it can be flushed."""
        await self._post("/pause_generation", {"mode": mode}, admin=True)

    async def resume(self) -> None:
        """Go on with every held request."""
        await self._post("/continue_generation", {}, admin=True)

    async def flush_cache(self) -> None:
        """Forget all prefixes; an error while requests run."""
        await self._post("/flush_cache", {}, admin=True)

    async def begin_update(self) -> None:
        """Open an update of weights; must be closed by `end_update`, else the next one is refused."""
        await self._post("/begin_weight_update", {}, admin=True)

    async def end_update(self) -> None:
        """Close an update of weights."""
        await self._post("/end_weight_update", {}, admin=True)

    async def load_tensors(self, payload: str, *, loader: str | None, version: Version) -> None:
        """Load tensors from a base64 pickle of (name, tensor) pairs, through the engine's `loader`, as `version`.

        The prefix cache is flushed. An engine skips names that it does not know and still answers with success.
        """
        body = {
            "serialized_named_tensors": [payload],
            "load_format": loader,
            "flush_cache": True,
            "weight_version": str(version),
        }
        await self._post("/update_weights_from_tensor", body, admin=True)

    async def load_folder(self, path: str, *, version: Version) -> None:
        """Load the safetensors files of a folder as `version`, and flush the prefix cache."""
        body = {"model_path": path, "flush_cache": True, "weight_version": str(version)}
        await self._post("/update_weights_from_disk", body, admin=True)

    async def checksums(self) -> Mapping[str, str]:
        """A checksum of each parameter that the engine holds, by the engine's own (fused) names.

        On a CPU it is the first 16 digits of the SHA-256 of the parameter's bytes.
        """
        reply = await self._post("/weights_checker", {"action": "checksum"}, admin=True)
        ranks = self._field("/weights_checker", reply, "ranks")
        if len(ranks) != 1:
            raise self._error("/weights_checker", f"expected one rank, got {len(ranks)}")
        return ranks[0]["checksums"]

    async def version(self) -> Version:
        """The version that the engine serves."""
        reply = await self._get("/model_info")
        return self._version("/model_info", self._field("/model_info", reply, "weight_version"))

    async def num_healthy_workers(self) -> int:
        """How many engines a router sends requests to; asked of the router."""
        workers = self._field("/workers", await self._get("/workers"), "workers")
        return sum(worker["is_healthy"] for worker in workers)

    async def check_generating(self) -> None:
        """Raise EngineError unless the engine generates a token; never while it is paused."""
        await self._get("/health_generate")

    async def is_ready(self) -> bool:
        """Whether the server answers, within READY_TIMEOUT_S, and has finished its warm-up.

        What holds the port of a server that could not bind it may accept a connection and never answer.
        """
        timeout = aiohttp.ClientTimeout(total=READY_TIMEOUT_S)
        try:
            async with self._open_session.get("/health", timeout=timeout) as response:
                return response.status == 200
        except NO_ANSWER:
            return False

    @property
    def _open_session(self) -> aiohttp.ClientSession:
        assert self._session is not None, "EngineHttp is used without `async with`"
        return self._session

    async def _get(self, path: str) -> Any:
        return await self._ask("GET", path, None, key=self.address.keys.api)

    async def _post(self, path: str, body: Mapping[str, Any], *, admin: bool = False) -> Any:
        keys = self.address.keys
        return await self._ask("POST", path, orjson.dumps(body), key=keys.admin if admin else keys.api)

    async def _ask_until_taken(self, path: str, body: bytes) -> Any:
        """The reply to a request that may be repeated; an engine that is away is waited for within the time limit."""
        give_up_at = time.monotonic() + self._timeout_s
        for attempt in itertools.count():
            try:
                return await self._ask("POST", path, body, key=self.address.keys.api)
            except _AwayError as away:
                pause_s = min(FIRST_PAUSE_S * 2**attempt, LONGEST_PAUSE_S) * random.uniform(0.5, 1.0)
                if time.monotonic() + pause_s > give_up_at:
                    raise EngineError(f"{away}, for {self._timeout_s:g} s (rollout.request_timeout_s)") from away
                if attempt == 0:
                    log.warning("%s; asking again for up to %g s", away, self._timeout_s)
            await asyncio.sleep(pause_s)

    async def _ask(self, method: str, path: str, body: bytes | None, *, key: str) -> Any:
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        try:
            async with self._open_session.request(method, path, data=body, headers=headers) as response:
                content = await response.read()
        except NO_ANSWER as error:
            kind = _AwayError if isinstance(error, aiohttp.ClientConnectionError) else EngineError
            raise self._error(path, f"no answer: {type(error).__name__} {error}".rstrip(), kind) from error
        if response.status != 200:
            kind = _AwayError if response.status in AWAY else EngineError
            raise self._error(path, f"status {response.status}: {content.decode('utf-8', 'replace')[:500]}", kind)
        is_json = response.headers.get("Content-Type", "").startswith("application/json") and content
        return orjson.loads(content) if is_json else None

    def _completion(self, reply: Mapping[str, Any], *, offset: int) -> Completion:
        meta = self._field("/generate", reply, "meta_info")
        tokens = np.array(reply.get("output_ids", ()), dtype=np.int32)
        pairs = meta.get("output_token_logprobs", ())
        logprobs = np.array([pair[0] for pair in pairs], dtype=np.float32)
        if not np.array_equal(tokens, [pair[1] for pair in pairs]):
            raise self._error("/generate", f"{len(tokens)} tokens do not match their {len(pairs)} log-probs")
        if not np.isfinite(logprobs).all():
            raise self._error("/generate", "a log-prob is not finite")
        finish = Finish(self._field("/generate", meta, "finish_reason")["type"])
        versions = tuple(
            Span(self._version("/generate", span["version"]), offset + span["start"], offset + span["end"])
            for span in meta.get("weight_versions", ())
        )
        return Completion(tokens=tokens, logprobs=logprobs, versions=versions, finish=finish)

    def _version(self, path: str, value: str) -> Version:
        try:
            return Version(int(value))
        except ValueError:
            raise self._error(path, f"expected a version number, got {value!r}") from None

    def _field(self, path: str, reply: Any, name: str) -> Any:
        try:
            return reply[name]
        except (KeyError, TypeError):
            raise self._error(path, f"expected a reply with the field {name}, got {str(reply)[:200]}") from None

    def _error(self, path: str, what: str, kind: type[EngineError] = EngineError) -> EngineError:
        return kind(f"{self.address.name} at {self.address.url}{path}: {what}")
