"""`make bench`: how much the system adds to its engines. The last line is one line of JSON."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

from bench import deterministic, phases, sampling, training
from slime_rl.demo.model import write_model
from slime_rl.demo.problems import split_problems, write_data


def main() -> None:
    """Run every benchmark on a freshly initialised demo model."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_model(root / "model", seed=0)
        write_data(root / "data", split_problems(0), 0)
        results = {
            "training_vs_hf": training.compare(root),
            "sampling_vs_engine": sampling.compare(root),
            "deterministic_vs_ordinary_seconds": deterministic.compare(root),
            "phase_shares": phases.measure(root),
        }
    print(json.dumps(results))


if __name__ == "__main__":
    main()
