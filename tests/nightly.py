"""The long profiles: `tests/nightly.py 1/4` runs the first of four shards, `tests/nightly.py` alone sums them up.

A shard runs random schedules of the buffer's model test, and rounds of the chaos test at random points.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SHARDS = ROOT / "runs" / "nightly"
RESULT = ROOT / "bench" / "results" / "nightly.json"
TRANSITIONS = 100_000
SCHEDULES = 1400
"""On each of the two buffers; about 45 transitions each."""
ROUNDS = 600


def main() -> int:
    """Run a shard, or sum up all of them; 1 if anything failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shard", nargs="?", help="which of how many: 2/4")
    shard = parser.parse_args().shard
    if shard is None:
        return sum_up()
    found = re.fullmatch(r"(\d+)/(\d+)", shard)
    if found is None or not 1 <= int(found[1]) <= int(found[2]):
        parser.error(f"expected a shard such as 2/4, got {shard!r}")
    return run(int(found[1]), int(found[2]))


def run(number: int, count: int) -> int:
    """Run one shard and leave its figures in `runs/nightly`."""
    seed = int(time.time()) + number
    log = {"shard": f"{number}/{count}", "commit": commit(), "seed": seed}
    log |= {"model": model(SCHEDULES // count, seed), "chaos": chaos(ROUNDS // count, seed)}
    SHARDS.mkdir(parents=True, exist_ok=True)
    (SHARDS / f"{number}-of-{count}.json").write_text(json.dumps(log, indent=2) + "\n")
    print(json.dumps(log))
    return 1 if log["model"]["failures"] or log["chaos"]["failures"] else 0


def model(num_schedules: int, seed: int) -> dict[str, Any]:
    """The model test on so many schedules, on the buffer in memory and on a server."""
    tally = SHARDS / f"transitions-{seed}"
    SHARDS.mkdir(parents=True, exist_ok=True)
    tally.unlink(missing_ok=True)
    began = time.monotonic()
    environment = os.environ | {"SLIME_RL_SCHEDULES": str(num_schedules), "SLIME_RL_TRANSITIONS": str(tally)}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", f"--hypothesis-seed={seed}", "tests/contract/test_model.py"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    lengths = [int(line) for line in tally.read_text().split()] if tally.exists() else []
    tally.unlink(missing_ok=True)
    failures = [] if done.returncode == 0 else [done.stdout[-5000:]]
    print("\n".join(failures), flush=True)
    seconds = round(time.monotonic() - began)
    return {"schedules": len(lengths), "transitions": sum(lengths), "failures": failures, "seconds": seconds}


def chaos(num_rounds: int, seed: int) -> dict[str, Any]:
    """Rounds of the chaos test at random points."""
    sys.path.insert(0, str(ROOT / "tests"))
    from chaos import campaign, test_chaos

    labels = sorted({arm.label for arms in test_chaos.ROUNDS for arm in arms})
    return campaign.run(num_rounds, seed, labels)


def sum_up() -> int:
    """Add up the shards of a whole round, which are of one commit, and write the result beside the benchmarks'."""
    logs = [json.loads(file.read_text()) for file in sorted(SHARDS.glob("*-of-*.json"))]
    counts = {log["shard"].partition("/")[2] for log in logs}
    if not logs or counts != {str(len(logs))} or len({log["commit"] for log in logs}) != 1:
        print(f"expected all shards of one round, of one commit, got {[log['shard'] for log in logs]}", file=sys.stderr)
        return 2
    struck = sum((Counter(log["chaos"]["struck"]) for log in logs), Counter())
    result = {
        "commit": logs[0]["commit"],
        "shards": len(logs),
        "seeds": [log["seed"] for log in logs],
        "model": {name: sum(log["model"][name] for log in logs) for name in ("schedules", "transitions", "seconds")},
        "chaos": {name: sum(log["chaos"][name] for log in logs) for name in ("rounds", "seconds")} | {"struck": struck},
        "failures": [failure for log in logs for part in ("model", "chaos") for failure in log[part]["failures"]],
    }
    RESULT.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result))
    return 1 if result["failures"] or result["model"]["transitions"] < TRANSITIONS else 0


def commit() -> str:
    """The commit that is tested, with a + if files have changed since."""
    asked = ["git", "-C", str(ROOT), "describe", "--always", "--dirty=+"]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    raise SystemExit(main())
