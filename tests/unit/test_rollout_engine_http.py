"""The client of the engines against a server that answers like one."""

import asyncio
import json

import numpy as np
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from slime_rl.errors import EngineError
from slime_rl.rollout.address import Address, Keys
from slime_rl.rollout.engine_http import EngineHttp
from slime_rl.types import Finish, Span, Version

KEYS = Keys("api", "admin")


def completion(**changes):
    """One reply as sglang 0.5.23 gives it."""
    meta = {
        "finish_reason": {"type": "length", "length": 2},
        "output_token_logprobs": [[-0.5, 7, None], [-0.25, 8, None]],
        "weight_version": "4",
        "weight_versions": [{"version": "3", "start": 0, "end": 1}, {"version": "4", "start": 1, "end": 2}],
    }
    return {"text": "", "output_ids": [7, 8], "meta_info": {**meta, **changes}}


class FakeEngine:
    """Answers with `reply` and keeps what it was asked."""

    def __init__(self, reply, status=200):
        self.reply = reply
        self.status = status
        self.requests = []

    async def answer(self, request):
        content = await request.read()
        self.requests.append((request.path, json.loads(content) if content else None, request.headers["Authorization"]))
        return web.json_response(self.reply, status=self.status)


@pytest.fixture
async def connect():
    """Serves a fake engine and returns a client of it."""
    opened = []

    async def open_client(fake, timeout_s=5.0, serial=False):
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", fake.answer)
        server = TestServer(app)
        await server.start_server()
        address = Address("engine 2", str(server.make_url("")).rstrip("/"), KEYS)
        client = EngineHttp(address, timeout_s=timeout_s, serial=serial)
        opened.append((server, await client.__aenter__()))
        return client

    yield open_client
    for server, client in opened:
        await client.__aexit__(None, None, None)
        await server.close()


async def generate(client, num_samples=1):
    return await client.generate(
        [1, 2, 3], num_samples=num_samples, temperature=0.5, max_new_tokens=2, stop_token_ids=[9]
    )


async def test_a_group_is_one_request_with_the_samplings_own_settings(connect):
    fake = FakeEngine([completion(), completion()])
    assert len(await generate(await connect(fake), num_samples=2)) == 2
    expected = {
        "input_ids": [1, 2, 3],
        "sampling_params": {"n": 2, "temperature": 0.5, "max_new_tokens": 2, "stop_token_ids": [9]},
        "return_logprob": True,
    }
    assert fake.requests == [("/generate", expected, "Bearer api")]


class Busy(FakeEngine):
    """Lets others in while it answers, and counts how many are inside."""

    inside = most = 0

    async def answer(self, request):
        self.inside += 1
        self.most = max(self.most, self.inside)
        await asyncio.sleep(0.01)
        self.inside -= 1
        return await super().answer(request)


@pytest.mark.parametrize(("serial", "most"), [(True, 1), (False, 3)])
async def test_a_serial_client_asks_for_one_completion_after_another_by_their_seeds(connect, serial, most):
    fake = Busy(completion())
    client = await connect(fake, serial=serial)
    settings = {"num_samples": 1, "temperature": 0.5, "max_new_tokens": 2, "stop_token_ids": [9]}
    await asyncio.gather(*[client.generate([1, 2, 3], seed=seed, **settings) for seed in (5, 6, 7)])
    assert fake.most == most
    assert sorted(body["sampling_params"]["sampling_seed"] for _, body, _ in fake.requests) == [5, 6, 7]


async def test_tokens_logprobs_and_versions_come_from_the_reply(connect):
    [one] = await generate(await connect(FakeEngine(completion())))
    assert one.tokens.dtype == np.int32
    assert one.tokens.tolist() == [7, 8]
    assert one.logprobs.dtype == np.float32
    assert one.logprobs.tolist() == [-0.5, -0.25]
    assert one.versions == (Span(Version(3), 3, 4), Span(Version(4), 4, 5))
    assert one.finish == Finish.LENGTH


async def test_an_abort_before_the_first_token_is_an_empty_completion(connect):
    reply = {"text": "", "meta_info": {"finish_reason": {"type": "abort", "message": "x"}, "weight_version": "4"}}
    [one] = await generate(await connect(FakeEngine(reply)))
    assert one.finish == Finish.ABORT
    assert len(one.tokens) == 0


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (completion(output_token_logprobs=[[-0.5, 7, None]]), "2 tokens do not match their 1 log-probs"),
        (completion(output_token_logprobs=[[-0.5, 7, None], [-0.5, 9, None]]), "do not match"),
        (completion(output_token_logprobs=[[-0.5, 7, None], [None, 8, None]]), "a log-prob is not finite"),
        (completion(weight_versions=[{"version": "default", "start": 0, "end": 2}]), "expected a version number"),
        ({"text": ""}, "expected a reply with the field meta_info"),
        ([completion(), completion()], "expected 1 completions, got 2"),
    ],
)
async def test_a_reply_that_does_not_add_up_is_an_error(connect, reply, message):
    with pytest.raises(EngineError, match=f"engine 2 at http.*/generate: .*{message}"):
        await generate(await connect(FakeEngine(reply)))


async def test_an_error_of_the_engine_carries_its_words(connect):
    client = await connect(FakeEngine({"error": {"message": "too long"}}, status=400))
    with pytest.raises(EngineError, match=r"engine 2 at http.*/generate: status 400: .*too long"):
        await generate(client)


async def test_a_hanging_engine_is_an_error_after_the_limit(connect):
    class Hanging(FakeEngine):
        async def answer(self, request):
            await asyncio.Event().wait()
            return await super().answer(request)

    with pytest.raises(EngineError, match=r"engine 2 at .*generate: no answer: TimeoutError"):
        await generate(await connect(Hanging(None), timeout_s=0.1))


async def test_an_engine_that_is_gone_is_an_error():
    address = Address("engine 2", "http://127.0.0.1:9", KEYS)
    async with EngineHttp(address, timeout_s=5.0) as client:
        assert not await client.is_ready()
        with pytest.raises(EngineError, match="no answer: ClientConnectorError"):
            await client.version()


@pytest.mark.parametrize("status", [502, 503])
async def test_an_engine_that_is_away_is_asked_again(connect, status):
    class Restarting(FakeEngine):
        async def answer(self, request):
            self.status = status if len(self.requests) < 2 else 200
            return await super().answer(request)

    fake = Restarting(completion())
    [found] = await generate(await connect(fake))
    assert list(found.tokens) == [7, 8]
    assert len(fake.requests) == 3


async def test_an_engine_that_goes_away_with_a_request_is_asked_again(connect):
    class Dropping(FakeEngine):
        async def answer(self, request):
            if not self.requests:
                request.transport.close()
            return await super().answer(request)

    fake = Dropping(completion())
    await generate(await connect(fake))
    assert len(fake.requests) == 2


async def test_an_engine_that_stays_away_is_an_error_after_the_limit(connect):
    fake = FakeEngine({"error": "no workers"}, status=503)
    client = await connect(fake, timeout_s=1.0)
    with pytest.raises(EngineError, match=r"503: .*no workers.*, for 1 s \(rollout.request_timeout_s\)") as fault:
        await generate(client)
    assert type(fault.value) is EngineError
    assert 3 <= len(fake.requests) <= 7


async def test_weights_are_touched_with_the_admin_key_only(connect):
    fake = FakeEngine({"success": True})
    client = await connect(fake)
    await client.pause("retract")
    await client.begin_update()
    await client.load_tensors("payload", loader="loader", version=Version(5))
    await client.end_update()
    await client.load_folder("/folder", version=Version(6))
    await client.flush_cache()
    await client.resume()
    await client.abort_all()
    assert {key for _, _, key in fake.requests} == {"Bearer admin"}
    paths = {path: body for path, body, _ in fake.requests}
    assert paths["/update_weights_from_tensor"]["weight_version"] == "5"
    assert paths["/update_weights_from_disk"] == {"model_path": "/folder", "flush_cache": True, "weight_version": "6"}


async def test_checksums_of_more_than_one_rank_are_refused(connect):
    assert await (await connect(FakeEngine({"ranks": [{"checksums": {"a": "1"}}]}))).checksums() == {"a": "1"}
    with pytest.raises(EngineError, match="expected one rank, got 2"):
        await (await connect(FakeEngine({"ranks": [{}, {}]}))).checksums()
