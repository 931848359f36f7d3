"""Crews of real Ray actors: whose failure is told, and how long a call may take."""

import asyncio
import os
from pathlib import Path

import pytest
import ray

from slime_rl.actors.crew import Crew, Member
from slime_rl.errors import ConfigError, EngineError, TrainerError, WaitTimeout
from slime_rl.launch.cluster import ray_cluster

pytestmark = pytest.mark.slow
LOG = Path("logs/part.log")


@ray.remote(num_cpus=0)
class Part:
    """Does what it is told."""

    async def echo(self, word):
        return word

    async def sleep(self, seconds):
        await asyncio.sleep(seconds)

    async def die(self, seconds):
        await asyncio.sleep(seconds)
        os._exit(1)

    async def fail(self, error):
        raise error

    async def act(self, method, argument):
        return await getattr(self, method)(argument)

    async def stop(self):
        await asyncio.sleep(3600.0)


@pytest.fixture(scope="module", autouse=True)
def cluster():
    with ray_cluster():
        yield


@pytest.fixture
def crew():
    """Two ranks, killed after the test."""
    members = [Member(actor=Part.remote(), name=f"rank {i}", log=LOG, error=TrainerError) for i in range(2)]
    yield Crew(members)
    for member in members:
        ray.kill(member.actor)


async def test_results_come_in_the_order_of_the_members(crew):
    assert await crew.call("echo", "a", doing="echoing") == ["a", "a"]
    assert await crew.share("echo", [("a",), ("b",)], doing="echoing") == ["a", "b"]


async def test_the_dead_member_is_blamed_though_its_peer_failed_first(crew):
    shares = [("fail", ConnectionError("peer closed")), ("die", 0.5)]
    with pytest.raises(TrainerError, match=r"^rank 1 died in step 3; see logs/part\.log$"):
        await crew.share("act", shares, doing="in step 3")


async def test_a_failure_is_told_though_the_others_never_answer(crew, monkeypatch):
    monkeypatch.setattr("slime_rl.actors.crew.BLAME_S", 0.2)
    shares = [("sleep", 3600.0), ("fail", ZeroDivisionError("by zero"))]
    with pytest.raises(TrainerError, match=r"rank 1 failed in step 3: ZeroDivisionError\('by zero'\); see logs"):
        await crew.share("act", shares, doing="in step 3")


async def test_an_error_of_ours_comes_as_it_is(crew):
    with pytest.raises(ConfigError, match=r"^trainer\.lr must be a number above 0, got -1$"):
        await crew.call("fail", ConfigError("trainer.lr", "must be a number above 0", -1), doing="loading")


async def test_a_call_past_its_limit_names_the_wait(crew):
    with pytest.raises(WaitTimeout, match=r"^waited 0\.2 s for rank 0 in step 3; see logs/part\.log$"):
        await crew.members[0].call("sleep", 3600.0, doing="in step 3", timeout_s=0.2)


async def test_a_time_limit_inside_the_member_is_not_taken_for_the_limit_of_the_call(crew):
    with pytest.raises(TrainerError, match=r"rank 0 failed in step 3: TimeoutError\('store'\)"):
        await crew.members[0].call("fail", TimeoutError("store"), doing="in step 3", timeout_s=60.0)


async def test_an_actor_that_is_gone_is_an_error_of_its_own_kind():
    member = Member(actor=Part.remote(), name="engine 7", log=LOG, error=EngineError)
    await member.call("echo", 1, doing="starting")
    ray.kill(member.actor)
    with pytest.raises(EngineError, match=r"^engine 7 died generating; see"):
        await member.call("echo", 1, doing="generating", timeout_s=60.0)


async def test_the_end_does_not_wait_for_a_member_that_does_not_stop():
    member = Member(actor=Part.remote(), name="rank 0", log=LOG, error=TrainerError)
    await Crew([member]).end(timeout_s=0.2)
    with pytest.raises(TrainerError, match="rank 0 died asking"):
        await member.call("echo", 1, doing="asking", timeout_s=60.0)
