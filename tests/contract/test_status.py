"""`slime-rl status` on the buffer of a run, with its own server."""

import asyncio
import json
from pathlib import Path

import pytest

from slime_rl.buffer.redis_buffer import RedisBuffer
from slime_rl.buffer.server import EmbeddedServer
from slime_rl.cli import main
from slime_rl.errors import StoreError

CONFIG = """
run: {{folder: {folder}}}
model: {{path: somewhere}}
data: {{path: nowhere.jsonl}}
loop: {{steps: 1}}
reward: {{function: exact_match}}
"""


@pytest.fixture
def server(tmp_path: Path):
    (tmp_path / "run.json").write_text(json.dumps({"id": "seen", "began": True}))
    (tmp_path / "config.yaml").write_text(CONFIG.format(folder=tmp_path))
    server = EmbeddedServer(tmp_path)
    yield server
    server.stop()


async def fill_some(url, pacing, fill):
    buffer = await RedisBuffer.open(url, pacing(run_id="seen", max_lag=1), create=True)
    held = [await buffer.reserve(f"worker-{i}") for i in range(4)]
    await fill(buffer, *held[:2])
    await buffer.assign(0)
    assert held[2] is not None
    await buffer.release(held[2], reason="equal rewards", retry=False)
    await buffer.close()


def test_the_status_of_a_run_under_way(server, tmp_path, pacing, fill, capsys):
    asyncio.run(fill_some(server.start(), pacing, fill))
    assert main(["status", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    for line in (
        "groups reserved 1",
        "groups assigned 2",
        "slots free 1",
        "dropped equal rewards: 1",
        "groups by lag 0: 2",
    ):
        assert line in " ".join(printed.split())
    assert "group 3 held by worker-3 since" in printed


def test_a_run_that_has_ended_is_told_in_one_line(server, tmp_path, capsys):
    assert main(["status", str(tmp_path)]) == 2
    server.start()
    server.stop()
    assert main(["status", str(tmp_path)]) == 2
    assert "expected a run that is under way" in capsys.readouterr().err


async def test_a_run_that_the_server_does_not_know_is_told(server):
    with pytest.raises(StoreError, match="there is no run 'seen' at unix://"):
        await RedisBuffer.join(server.start(), "seen")
