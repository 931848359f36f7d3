"""Filters: which scored groups are dropped, and why."""

from dataclasses import replace

import numpy as np
import pytest

from slime_rl.errors import ConfigError, FilterError
from slime_rl.rewards.filters import BuiltIn, check_filter
from slime_rl.rewards.functions import FILTER
from slime_rl.rewards.pool import FilterPool
from slime_rl.rewards.trial import check_loads
from slime_rl.types import Finish, Prompt, Sample, Span, Version

PROMPT = Prompt(index=3, text="1+1=", answer="2", metadata={"topic": "sums"})


def group(*rewards, finish=Finish.STOP):
    base = Sample(
        index=0,
        trajectory=0,
        tokens=np.array([5, 6, 7], np.int32),
        loss_mask=np.array([False, True, True]),
        logprobs=np.zeros(3, np.float32),
        versions=(Span(Version(0), 0, 3),),
        temperature=1.0,
        finish=finish,
        text="2",
    )
    return [replace(base, index=i, trajectory=i, reward=reward) for i, reward in enumerate(rewards)]


@pytest.fixture
def make(tmp_path):
    """A filter of a file, by the body of its function."""

    def make(body, *, timeout_s=30.0, head="def keep(prompt, samples):"):
        file = tmp_path / "filters.py"
        file.write_text(f"{head}\n    {body}\n")
        return FilterPool(f"{file}:keep", timeout_s=timeout_s, log=tmp_path / "filters.log")

    return make


@pytest.mark.parametrize(
    ("rewards", "reason"),
    [
        ((1.0, 1.0), "equal rewards above 0"),
        ((0.0, 0.0), "equal rewards, none above 0"),
        ((-1.0, -1.0), "equal rewards, none above 0"),
        ((0.0, 1.0), None),
        ((0.5, 0.5, 0.500001), None),
    ],
)
async def test_equal_rewards_say_whether_anything_was_right(rewards, reason):
    assert await BuiltIn("equal_rewards")(PROMPT, group(*rewards)) == reason


async def test_a_group_is_truncated_only_where_all_its_samples_are():
    cut, whole = group(0.0, 1.0, finish=Finish.LENGTH), group(0.0, 1.0)
    drops = BuiltIn("all_truncated")
    assert await drops(PROMPT, cut) == "all samples truncated"
    assert await drops(PROMPT, [cut[0], whole[1]]) is None


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("return True", None),
        ("return False", "keep"),
        ("import numpy; return numpy.bool_(True)", None),
        ("return 'too   long\\n'", "too long"),
        ("return prompt.metadata['topic'] if max(s.reward for s in samples) > 0.5 else True", "sums"),
        ("return all(s.num_tokens == 2 and s.finish_reason == 'stop' and s.text == '2' for s in samples)", None),
    ],
)
async def test_a_filter_of_a_file_sees_scored_samples_and_says_why(make, body, reason):
    async with make(body) as drops:
        assert await drops(PROMPT, group(0.0, 1.0)) == reason


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return None", "must return True, False or a reason, got NoneType None"),
        ("return 1", "must return True, False or a reason, got int 1"),
        ("return ' '", "must return True, False or a reason, got str ' '"),
        ("raise KeyError('level')", r"filter .*filters.py:keep raised KeyError\('level'\) at .*filters.py:2"),
        ("import os; os._exit(3)", "filter .* ended its process on prompt 3"),
        ("import time; time.sleep(60)", "filter .* took over 0.5 s on prompt 3 and was ended"),
    ],
)
async def test_a_filter_that_fails_is_an_error_and_neither_keeps_nor_drops(make, body, message):
    async with make(body, timeout_s=0.5) as drops:
        with pytest.raises(FilterError, match=message):
            await drops(PROMPT, group(0.0, 1.0))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("equal_reward", "loop.filters must be path/to/file.py:function or one of .*; did you mean 'equal_rewards'"),
        ("none.py:keep", "loop.filters must name a readable file"),
        ("{file}:kep", "loop.filters must name a function of .*; did you mean 'keep'"),
        ("{file}:one", r"loop.filters .*:one must take \(prompt, samples\), got \('prompt', 'sample'\)"),
    ],
)
def test_a_name_that_stands_for_no_filter_is_refused(tmp_path, name, message):
    file = tmp_path / "filters.py"
    file.write_text("def keep(prompt, samples): ...\n\ndef one(prompt, sample): ...\n")
    with pytest.raises(ConfigError, match=message):
        check_filter(name.format(file=file))


def test_a_filter_that_does_not_load_is_refused(tmp_path):
    file = tmp_path / "filters.py"
    file.write_text("import no_such_module\n\ndef keep(prompt, samples):\n    return True\n")
    with pytest.raises(ConfigError, match=r"loop.filters must load .*No module named 'no_such_module'"):
        check_loads(FILTER, f"{file}:keep", timeout_s=30.0)
