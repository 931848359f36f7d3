"""Servers that are not the run's own: what is asked of them, and what is said of those that refuse."""

import asyncio
import time
from typing import cast

import pytest
import redis
import redis.asyncio
from contract.tls_door import make_certificate, tls_door
from redis.exceptions import MovedError

from slime_rl.buffer.calls import Calls
from slime_rl.buffer.connection import PatientRedis, connect, named_faults
from slime_rl.buffer.endpoint import Endpoint
from slime_rl.buffer.keys import payload_key, run_key
from slime_rl.buffer.reader import GroupReader
from slime_rl.buffer.reconnection import FIRST_CONTACT_S
from slime_rl.buffer.requirements import check_server
from slime_rl.buffer.server import EmbeddedServer
from slime_rl.config import BufferConfig
from slime_rl.errors import ConfigError, StoreError

PUT = "return redis.call('SET', KEYS[1], ARGV[1])"


@pytest.fixture
def url(tmp_path):
    """Of a server that a test may spoil."""
    server = EmbeddedServer(tmp_path)
    yield server.start()
    server.stop()


@pytest.fixture
def admin(url):
    with redis.Redis.from_url(url) as admin:
        yield admin


async def put(where, key="key"):
    async with connect(redis.asyncio.Redis, where) as client:
        with named_faults(where):
            await Calls(client).run(PUT, key, "value")


async def check(where):
    async with connect(redis.asyncio.Redis, where) as client:
        await check_server(client, where, key=run_key("run"))


async def test_a_durable_server_passes_without_a_word(url, caplog):
    await check(url)
    assert not caplog.records


async def test_a_server_that_may_evict_is_refused(url, admin):
    admin.config_set("maxmemory-policy", "allkeys-lru")
    with pytest.raises(ConfigError, match=r"buffer.url must name .* noeviction, got 'allkeys-lru'"):
        await check(url)


async def test_a_replica_is_refused(url, admin):
    admin.replicaof("127.0.0.1", 1)
    with pytest.raises(ConfigError, match=r"must name a primary, got 'a slave'"):
        await check(url)
    with pytest.raises(StoreError, match=r"it is a replica: name the primary\)$"):
        await put(url)


@pytest.mark.parametrize(
    ("settings", "warning"),
    [({"appendonly": "no"}, "keeps no log"), ({"appendfsync": "everysec"}, "is everysec, not always")],
)
async def test_a_server_that_can_lose_writes_is_warned_of(url, admin, caplog, settings, warning):
    for name, value in settings.items():
        admin.config_set(name, value)
    await check(url)
    assert warning in caplog.text


async def test_a_wrong_password_is_told_at_once_and_not_shown(url):
    socket, began = url.partition("@")[2], time.monotonic()
    with pytest.raises(StoreError, match=r"^the buffer at unix://[^\n]*password is missing or wrong\)$") as error:
        await put(f"unix://:hunter2@{socket}")
    assert "hunter2" not in str(error.value)
    assert time.monotonic() - began < FIRST_CONTACT_S


async def test_a_missing_password_is_told_in_one_line(url):
    with pytest.raises(StoreError, match=r"^the buffer at unix://[^\n]*password is missing or wrong\)$"):
        await put("unix://" + url.partition("@")[2])


async def test_a_full_server_is_told_in_one_line(url, admin):
    admin.config_set("maxmemory", 1)
    with pytest.raises(StoreError, match=r"it is out of memory: raise its maxmemory\)$"):
        await put(url)


async def test_a_stopped_server_runs_into_the_time_limit_of_a_call(url, admin):
    admin.client_pause(5000)
    where = Endpoint(url, BufferConfig().model_copy(update=LIMITS))
    began = time.monotonic()
    with pytest.raises(StoreError, match=r"(?i)time"):
        await put(where)
    assert time.monotonic() - began < 4


LIMITS = {"call_timeout_s": 0.2, "reconnect_timeout_s": 0.3}


def test_a_url_of_another_kind_is_a_mistake_in_the_configuration():
    with pytest.raises(ConfigError, match=r"buffer.url must be one of redis://.*, got 'http://host'"):
        connect(redis.Redis, "http://user:secret@host")


def test_a_cluster_is_not_reached_by_a_socket():
    with connect(redis.Redis, "unix:///tmp/node.sock") as client:
        route = cast(PatientRedis, client).patience.route
        with pytest.raises(StoreError, match=r"not by a socket\)$"), named_faults("unix:///tmp/node.sock"):
            route.follow(MovedError("7 127.0.0.1:1"), None)


ACL = ["on", ">secret", "~{slime_rl:*", "+@all", "-@admin", "-@dangerous", "+info", "+cluster|slots"]


async def test_the_rule_of_the_documentation_suffices_for_a_user(url, admin, caplog):
    admin.execute_command("ACL", "SETUSER", "trainer", *ACL)
    where = f"unix://trainer:secret@{url.partition('@')[2]}"
    await check(where)
    assert "may not read appendfsync" in caplog.text
    await put(where, run_key("run"))
    with pytest.raises(StoreError, match=r"the user may not do this: docs/buffer.md has the rule that it needs\)$"):
        await put(where, "another")


async def test_runs_under_another_prefix_are_strangers(url, admin):
    where = Endpoint(url, BufferConfig(prefix="team"))
    assert run_key("run", prefix="team") == "{team:run}:run"
    reader = GroupReader(where, "run")
    with pytest.raises(StoreError, match=r"\{team:run\}:payload:7"):
        reader.read([7])
    reader.close()
    assert payload_key("run", 7) == "{slime_rl:run}:payload:7"


@pytest.fixture
async def encrypted(url, tmp_path):
    """The URL of a TLS door to the server, which wants a certificate from those who enter; and its PEM files."""
    cert, key = await asyncio.to_thread(make_certificate, tmp_path)
    path, password = url.partition("@")[2], url.removeprefix("unix://").partition("@")[0]
    async with tls_door(lambda: asyncio.open_unix_connection(path), cert, key) as port:
        yield f"rediss://{password}@localhost:{port}", cert, key


async def test_it_is_reached_through_tls_with_certificates_of_both_sides(encrypted, admin):
    url, cert, key = encrypted
    await put(Endpoint(url, BufferConfig(tls_ca=cert, tls_cert=cert, tls_key=key)))
    assert cast(bytes, admin.get("key")) == b"value"
    with pytest.raises(StoreError, match=r"CERTIFICATE_VERIFY_FAILED"):
        await put(Endpoint(url, BufferConfig(reconnect_timeout_s=0.1)))


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"url": "redis://host", "tls_ca": "ca.pem"}, "buffer.tls_ca has no effect unless the URL begins with rediss"),
        ({"url": "rediss://host", "tls_ca": "/nowhere.pem"}, "buffer.tls_ca must be a PEM file, got '/nowhere.pem'"),
    ],
)
def test_files_of_tls_are_looked_for_before_anything_starts(fields, fault):
    with pytest.raises(ConfigError, match=fault):
        BufferConfig(**fields).find_url()
