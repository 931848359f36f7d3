"""`kill -9` of a worker, the driver, the trainer or the server at each labelled point of a run: nothing is lost.

Processes that were given up for dead, and come back, change nothing.

Each process is a real one, around the real loop, buffer, checkpoints and server; only the engines and the gradient are
stand-ins. `python -m chaos.campaign` has many rounds at random points.
"""

import itertools

import pytest
from chaos.points import Arm
from chaos.rounds import Round, check, context

from slime_rl.buffer.server import EmbeddedServer

pytestmark = pytest.mark.slow

WHEN = ("before", "after")
WORKER = ("attach", "reserve", "extend", "fill", "release", "heartbeat", "blob")
DRIVER = ("create", "serve", "begin", "survey", "assign", "publish", "snapshot", "save", "commit", "close")
TRAINER = ("load", "step", "save")
SERVER = ("worker:reserve", "worker:extend", "worker:fill", "worker:release", "worker:heartbeat")
SERVER += ("driver:assign", "driver:publish", "driver:snapshot", "driver:commit")
IN_RESUME = ("attach", "rollback", "publish", "assign", "commit")
STALLS = ("worker:reserve", "worker:extend", "worker:fill", "worker:release", "worker:heartbeat")
STALLS += ("driver:assign", "driver:snapshot", "driver:commit")
KILLED = Arm("driver:publish:after", 4)
LOST = Arm("driver:assign:after", 7, forget=True)


def points():
    """At least one round for each point."""
    for role, actions in (("worker", WORKER), ("driver", DRIVER), ("trainer", TRAINER)):
        yield from ((Arm(f"{role}:{action}:{when}"),) for action, when in itertools.product(actions, WHEN))
    yield (Arm("driver:rename:before"),)
    yield from ((Arm(f"{action}:{when}", victim="server"),) for action, when in itertools.product(SERVER, WHEN))
    yield from ((Arm(f"{action}:before", victim="pause"),) for action in STALLS)
    for action, when in itertools.product(IN_RESUME, WHEN):
        yield KILLED, Arm(f"driver:{action}:{when}")
    for action, when in itertools.product(("rollback", "restore"), WHEN):
        yield LOST, Arm(f"driver:{action}:{when}")


ROUNDS = list(points())


@pytest.fixture(scope="session")
def processes():
    return context()


@pytest.fixture
def server(tmp_path):
    """One for each round: it is started again only so many times."""
    server = EmbeddedServer(tmp_path / "server")
    url = server.start()
    yield server, url
    server.stop()


def test_there_are_enough_points():
    assert len(set(ROUNDS)) == len(ROUNDS) >= 30


@pytest.mark.parametrize("number", range(len(ROUNDS)), ids=["-then-".join(map(str, arms)) for arms in ROUNDS])
def test_a_run_whose_processes_are_killed_trains_each_prompt_once(processes, server, tmp_path, number):
    max_lag = number % 3
    outcome = Round(processes, server, tmp_path / "round", max_lag, ROUNDS[number]).run()
    assert outcome.fired == len(ROUNDS[number]), "a point was never reached"
    check(outcome, max_lag=max_lag)
    if all(arm.victim == "server" for arm in outcome.arms):
        assert outcome.restarts == {"driver": 0, "worker": 0}, outcome.log
