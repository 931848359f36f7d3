"""The router before two real engines."""

import asyncio
import collections
import dataclasses
import os
import signal
import socket

import psutil
import pytest

from slime_rl.config import EvaluationConfig, SamplingConfig
from slime_rl.errors import EngineError
from slime_rl.rollout.address import Address, Keys, free_ports
from slime_rl.rollout.engine import Engine
from slime_rl.rollout.engine_http import EngineHttp
from slime_rl.rollout.evaluation import evaluate
from slime_rl.rollout.router import Router
from slime_rl.rollout.single_turn import SingleTurn
from slime_rl.rollout.weights.publisher import Publisher
from slime_rl.types import Prompt, Version

pytestmark = [pytest.mark.engine, pytest.mark.slow]

SECOND_VERSION = Version(1_000_000)
"""What the second engine calls its weights, so that a sample tells which engine it comes from."""


@pytest.fixture(scope="module")
def second_engine(model_config, rollout_config, keys, log_folder):
    engine = Engine(1, model=model_config, rollout=rollout_config, log_folder=log_folder, keys=keys, seed=0)
    asyncio.run(engine.start(SECOND_VERSION))
    yield engine
    engine.stop()


@pytest.fixture
async def router(engine, second_engine, rollout_config, keys, tmp_path):
    """A client of a router before both engines."""
    router = Router(rollout=rollout_config, log_folder=tmp_path, keys=keys)
    address = await router.start([engine.address, second_engine.address])
    async with EngineHttp(address, timeout_s=60.0) as http:
        yield http
    router.stop()


async def sample(http, num_samples=2):
    return await http.generate([5, 6, 7], num_samples=num_samples, temperature=1.0, max_new_tokens=8, stop_token_ids=())


async def test_load_is_even_over_two_engines(router):
    groups = await asyncio.gather(*(sample(router) for _ in range(64)))
    counts = collections.Counter(group[0].versions[0].version == SECOND_VERSION for group in groups)
    assert counts == {True: 32, False: 32}


async def test_the_router_opens_with_the_key_of_the_run_only(router):
    stranger = Address("router", router.address.url, Keys("wrong", "wrong"))
    async with EngineHttp(stranger, timeout_s=10.0) as http:
        with pytest.raises(EngineError, match="401"):
            await sample(http)


async def test_an_evaluation_runs_over_both_engines(router, renderer):
    async def length(prompt, samples):
        return [dataclasses.replace(s, reward=float(s.num_trained)) for s in samples]

    program = SingleTurn(http=router, renderer=renderer, sampling=SamplingConfig(max_new_tokens=6))
    prompts = [Prompt(index=i, text=f"{i}+1=") for i in range(100)]
    result = await evaluate(prompts, program, length, evaluation=EvaluationConfig(path="held-out.jsonl"))
    assert result.scores.shape == (100,)
    assert result.score == pytest.approx(result.lengths.mean())


async def test_one_publish_reaches_every_engine(router, engine, second_engine, new_weights, tmp_path):
    weights = new_weights()
    addresses = [engine.address, second_engine.address]
    publisher = Publisher(addresses, transport="tensor", folder=tmp_path, timeout_s=60.0)
    await publisher.publish(weights.version, weights.tensors())
    groups = await asyncio.gather(*(sample(router) for _ in range(4)))
    assert {span.version for group in groups for one in group for span in one.versions} == {weights.version}
    await publisher.publish(SECOND_VERSION, weights.tensors())


async def test_a_router_that_is_killed_is_an_error_and_so_is_a_request_to_it(engine, rollout_config, keys, tmp_path):
    router = Router(rollout=rollout_config, log_folder=tmp_path, keys=keys)
    address = await router.start([engine.address])
    [process] = psutil.Process(router.process.pid).children(recursive=True)
    os.kill(process.pid, signal.SIGKILL)
    router.process.wait(10.0)
    with pytest.raises(EngineError, match=r"router ended with exit status 137; the last lines of .*router\.log"):
        router.process.check_running()
    async with EngineHttp(address, timeout_s=10.0) as http:
        with pytest.raises(EngineError, match=r"router at http.*no answer"):
            await sample(http)
    router.stop()


async def test_a_port_that_was_taken_meanwhile_is_another_try_of_the_router(engine, rollout_config, keys, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        [free] = free_ports(1)
        found = iter([[taken, free], [free, taken], free_ports(2)])
        router = Router(rollout=rollout_config, log_folder=tmp_path, keys=keys, find_ports=lambda _: next(found))
        address = await router.start([engine.address])
        async with EngineHttp(address, timeout_s=60.0) as http:
            assert len(await sample(http)) == 2
        router.stop()


async def test_a_router_that_finds_no_port_says_so_after_three_tries(engine, rollout_config, keys, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        found = iter([[taken, taken]] * 3)
        router = Router(rollout=rollout_config, log_folder=tmp_path, keys=keys, find_ports=lambda _: next(found))
        with pytest.raises(EngineError, match=r"(?is)router ended with exit status 1.*address already in use"):
            await router.start([engine.address])
    assert list(found) == []
