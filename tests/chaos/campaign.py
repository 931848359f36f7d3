"""Many rounds of the chaos test, each at points drawn at random."""

from __future__ import annotations

import random
import shutil
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

from chaos.points import Arm
from chaos.rounds import Round, check, context

from slime_rl.buffer.server import EmbeddedServer

MOST_ARMS = 4
LATEST = 4
FORGETS = 0.1


def draw(rng: random.Random, labels: list[str]) -> tuple[Arm, ...]:
    """What goes off in a round, one after another; some of it may never be reached."""
    return tuple(_arm(rng, rng.choice(labels)) for _ in range(rng.randint(1, MOST_ARMS)))


def _arm(rng: random.Random, label: str) -> Arm:
    role = label.partition(":")[0]
    victims = {"worker": ["self", "self", "server", "pause"], "driver": ["self", "self", "server"], "trainer": ["self"]}
    victim: Any = rng.choice(victims[role])
    forget = role == "driver" and victim == "self" and rng.random() < FORGETS
    return Arm(label, rng.randint(1, LATEST), victim, forget)


def run(num_rounds: int, seed: int, labels: list[str]) -> dict[str, Any]:
    """Run so many rounds; what a failed one left stays where the report says."""
    rng, processes = random.Random(seed), context()
    struck: Counter[str] = Counter()
    failures: list[str] = []
    began = time.monotonic()
    for number in range(num_rounds):
        arms, max_lag = draw(rng, labels), rng.randint(0, 3)
        folder = Path(tempfile.mkdtemp(prefix="slime_rl-chaos-"))
        server = EmbeddedServer(folder / "server")
        url = server.start()
        try:
            outcome = Round(processes, (server, url), folder / "round", max_lag, arms).run()
            check(outcome, max_lag=max_lag)
            struck.update(str(arm.victim) for arm in arms[: outcome.fired])
            shutil.rmtree(folder)
        except AssertionError:
            what = f"round {number} of seed {seed}, max_lag {max_lag}, {', '.join(map(str, arms))}, in {folder}"
            failures.append(f"{what}: {traceback.format_exc(limit=-1)}")
            print(failures[-1], flush=True)
        finally:
            server.stop()
    seconds = round(time.monotonic() - began)
    return {"rounds": num_rounds, "struck": dict(sorted(struck.items())), "failures": failures, "seconds": seconds}
