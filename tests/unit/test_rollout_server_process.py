"""Servers and everything they started end with their owner, whoever is killed."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from processes import wait_for, wait_until_ended

from slime_rl.errors import EngineError
from slime_rl.rollout.server_process import ServerProcess

TIMEOUT_S = 10.0
SHELL_FAMILY = "echo $$; sleep 1000 & echo $!; setsid sleep 1000 & echo $!; wait"
"""A server with one child in its group and one that has a session of its own; prints their ids."""

OWNER = """
import os, sys, time
from pathlib import Path
from slime_rl.rollout.server_process import ServerProcess
server = ServerProcess(["sh", "-c", sys.argv[1]], name="server", arguments={}, environment=os.environ,
                       log_path=Path(sys.argv[2]), grace_s=0.0)
print(server.pid, flush=True)
time.sleep(1000)
"""


def start(command: list[str], log: Path, *, grace_s: float = 0.0, **arguments: object) -> ServerProcess:
    return ServerProcess(
        command, name="server", arguments=arguments, environment=os.environ, log_path=log, grace_s=grace_s
    )


def family_of(log: Path) -> list[psutil.Process]:
    def three_ids() -> list[str]:
        ids = log.read_text().split() if log.exists() else []
        return ids if len(ids) == 3 else []

    return [psutil.Process(int(pid)) for pid in wait_for(three_ids, "three process ids")]


def test_arguments_reach_the_server_on_its_standard_input(tmp_path):
    server = start(["cat"], tmp_path / "log", key="secret")
    wait_for(lambda: server.exit_status == 0, "cat")
    assert (tmp_path / "log").read_text() == '{"key": "secret"}\n'
    server.stop()


def test_the_exit_status_and_the_end_of_the_log_are_in_the_error(tmp_path):
    server = start(["sh", "-c", "echo the cause >&2; exit 3"], tmp_path / "log")
    wait_for(lambda: server.exit_status is not None, "the shell")
    with pytest.raises(EngineError, match=r"(?s)server ended with exit status 3; the last lines of .*the cause"):
        server.check_running()
    server.stop()


def test_a_server_killed_by_a_signal_ends_with_128_and_its_number(tmp_path):
    server = start(["sh", "-c", "kill -9 $$"], tmp_path / "log")
    wait_for(lambda: server.exit_status == 137, "the shell")
    server.stop()


def test_stop_ends_the_whole_family(tmp_path):
    server = start(["sh", "-c", SHELL_FAMILY], tmp_path / "log")
    family = family_of(tmp_path / "log")
    server.check_running()
    server.stop()
    wait_until_ended(family)
    server.stop()


def test_a_server_may_end_by_itself_within_its_grace(tmp_path):
    server = start(
        ["sh", "-c", "trap 'echo bye; exit 0' TERM; echo up; sleep 1000 & wait"], tmp_path / "log", grace_s=5.0
    )
    wait_for(lambda: "up" in (tmp_path / "log").read_text(), "the trap")
    server.stop()
    assert (tmp_path / "log").read_text().split() == ["up", "bye"]


def test_what_a_dead_server_left_behind_is_killed(tmp_path):
    server = start(["sh", "-c", "echo $$; sleep 1000 & echo $!; setsid sleep 1000 & echo $!; exit 0"], tmp_path / "log")
    wait_for(lambda: server.exit_status == 0, "the launcher")
    ids = [int(pid) for pid in (tmp_path / "log").read_text().split()]
    assert not any(psutil.pid_exists(pid) for pid in ids)
    server.stop()


def test_the_family_ends_when_the_owner_is_killed(tmp_path):
    log = tmp_path / "log"
    owner = subprocess.Popen([sys.executable, "-c", OWNER, SHELL_FAMILY, str(log)], stdout=subprocess.PIPE)
    family = family_of(log)
    owner.send_signal(signal.SIGKILL)
    owner.communicate(timeout=TIMEOUT_S)
    wait_until_ended(family)


def test_the_server_ends_when_its_launcher_is_killed_and_stop_ends_the_rest(tmp_path):
    server = start(["sh", "-c", "echo $$; sleep 1000 & echo $!; sleep 1000 & echo $!; wait"], tmp_path / "log")
    family = family_of(tmp_path / "log")
    os.kill(server.pid, signal.SIGKILL)
    wait_until_ended(family[:1])
    wait_for(lambda: server.exit_status is not None, "the launcher")
    with pytest.raises(EngineError, match="exit status -9"):
        server.check_running()
    server.stop()
    wait_until_ended(family)


def test_the_log_can_be_read_by_its_owner_only(tmp_path):
    server = start(["true"], tmp_path / "log")
    server.stop()
    assert (tmp_path / "log").stat().st_mode & 0o777 == 0o600


STUCK = """
import faulthandler, signal, time
faulthandler.register(signal.SIGUSR1)
def stuck_here():
    print("up", flush=True)
    time.sleep(1000)
stuck_here()
"""


def test_a_server_asked_for_its_stacks_writes_them_and_lives_on_as_do_those_that_cannot(tmp_path):
    log = tmp_path / "log"
    server = start(["sh", "-c", f"sleep 1000 & exec {sys.executable} -c '{STUCK}'"], log)
    wait_for(lambda: log.exists() and "up" in log.read_text(), "the server")
    family = psutil.Process(server.pid).children(recursive=True)
    server.show_stacks()
    assert "in stuck_here" in server.log_tail()
    assert server.exit_status is None
    assert all(process.is_running() for process in family)
    assert len(family) == 2
    server.stop()
