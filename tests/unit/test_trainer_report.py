"""Totals of a step: sums and counts that add, maxima that keep NaN."""

import math
import subprocess
import sys

import pytest

from slime_rl.trainer.report import Totals

RANK = """
import math, sys, torch, torch.distributed as dist
from slime_rl.trainer.report import Totals
rank, store = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
totals = Totals()
totals.add("loss", 2.0 + rank, 1)
maxima = {"first": (math.nan, 1.0), "second": (1.0, math.nan), "lag": (3.0, 4.0), "low": (-math.inf, -2.0)}
for name, values in maxima.items():
    totals.raise_to(name, values[rank])
print(totals.over_ranks(dist.group.WORLD, torch.device("cpu")))
dist.destroy_process_group()
"""


@pytest.mark.parametrize("values", [(math.nan, 1.0), (1.0, math.nan), (1.0, math.nan, 2.0)])
def test_nan_stays_the_maximum_wherever_it_comes(values):
    totals = Totals()
    for value in values:
        totals.raise_to("logprob_abs_diff", value)
    assert math.isnan(totals.maxima["logprob_abs_diff"])


def test_the_maximum_is_the_largest_value():
    totals = Totals()
    for value in (-3.0, -1.0, -2.0):
        totals.raise_to("lag", value)
    assert totals.maxima == {"lag": -1.0}


@pytest.mark.slow
def test_nan_stays_the_maximum_whichever_rank_has_it(tmp_path):
    ranks = [
        subprocess.Popen([sys.executable, "-c", RANK, str(rank), str(tmp_path / "store")], stdout=subprocess.PIPE)
        for rank in range(2)
    ]
    printed = [rank.communicate(timeout=120)[0].decode().strip() for rank in ranks]
    maxima = "{'first': nan, 'lag': 4.0, 'low': -2.0, 'second': nan}"
    assert printed == [f"Totals(sums={{'loss': 5.0}}, counts={{'loss': 2.0}}, maxima={maxima})"] * 2
