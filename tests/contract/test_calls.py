"""Calls of functions that share round trips on a real server."""

import asyncio
from typing import cast

import pytest
import redis
import redis.asyncio

from slime_rl.buffer.calls import Calls

ECHO = "return {KEYS[1], ARGV[1]}"
COUNT = "return redis.call('INCR', KEYS[1])"


@pytest.fixture
async def client(server_url):
    async with redis.asyncio.Redis.from_url(server_url) as client:
        await client.script_flush()
        yield client


async def test_many_calls_at_once_take_two_turns_and_each_gets_its_own_reply(client):
    calls = Calls(client)
    await calls.run(ECHO, "key", 0)
    before = (await client.info("stats"))["total_connections_received"]
    replies = await asyncio.gather(*(calls.run(ECHO, "key", i) for i in range(300)))
    assert replies == [[b"key", b"%d" % i] for i in range(300)]
    assert (await client.info("stats"))["total_connections_received"] == before


async def test_an_error_of_one_call_is_not_its_neighbours(client):
    calls = Calls(client)
    replies = await asyncio.gather(
        *(calls.run(source, "key", 1) for source in (ECHO, "return redis.error_reply('ERR no')", ECHO)),
        return_exceptions=True,
    )
    assert replies[0] == replies[2] == [b"key", b"1"]
    assert isinstance(replies[1], redis.ResponseError)


async def test_a_server_that_has_forgotten_the_functions_is_told_again(client):
    calls = Calls(client)
    await calls.run(ECHO, "key", 1)
    await client.script_flush()
    assert await calls.run(ECHO, "key", 2) == [b"key", b"2"]


class SlowPipeline:
    """Answers each command with its last argument once `release` is set; counts the turns that were taken."""

    def __init__(self):
        self.release, self.turns, self.commands = asyncio.Event(), 0, []

    def pipeline(self, *, transaction):
        return self

    async def __aenter__(self):
        self.turns, self.commands = self.turns + 1, []
        return self

    async def __aexit__(self, *error):
        pass

    def execute_command(self, *command):
        self.commands.append(command)

    async def execute(self, *, raise_on_error):
        await self.release.wait()
        return [command[-1] for command in self.commands]


async def test_a_caller_that_gives_up_takes_only_itself_along():
    server = SlowPipeline()
    calls = Calls(cast(redis.asyncio.Redis, server))
    tasks = [asyncio.create_task(calls.run(ECHO, "key", i)) for i in range(3)]
    await asyncio.sleep(0)
    tasks[0].cancel()
    server.release.set()
    replies = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(replies[0], asyncio.CancelledError)
    assert replies[1:] == [1, 2]
    assert server.turns == 2


async def test_a_caller_that_gives_up_before_its_turn_is_not_run(client):
    calls = Calls(client)
    await client.delete("count")
    first = asyncio.create_task(calls.run(COUNT, "count"))
    second = asyncio.create_task(calls.run(COUNT, "count"))
    await asyncio.sleep(0)
    second.cancel()
    assert await first == 1
    assert await client.get("count") == b"1"
