import asyncio
import textwrap

import numpy as np
import pytest

from slime_rl.config import RewardConfig
from slime_rl.errors import ConfigError, RewardError
from slime_rl.rewards.exact_match import exact_match
from slime_rl.rewards.functions import Answer, check_reward, to_scores
from slime_rl.rewards.pool import GraderPool
from slime_rl.types import Finish, Prompt, Sample, Span, Version


def sample(text: str, index: int = 0) -> Sample:
    return Sample(
        index=index,
        trajectory=index,
        tokens=np.array([1, 2], np.int32),
        loss_mask=np.array([False, True]),
        logprobs=np.array([0, -1], np.float32),
        versions=(Span(Version(0), 1, 2),),
        temperature=1.0,
        finish=Finish.STOP,
        text=text,
    )


PROMPT = Prompt(index=0, text="1+1=", answer="2", metadata={"level": "easy"})


def write_reward(tmp_path, body: str) -> str:
    file = tmp_path / "rewards.py"
    file.write_text(textwrap.dedent(body))
    return str(file)


async def score(tmp_path, function: str, *texts: str, timeout_s: float = 30.0) -> list[Sample]:
    config = RewardConfig(function=function, timeout_s=timeout_s)
    async with GraderPool(config, log=tmp_path / "rewards.log") as pool:
        return await pool(PROMPT, [sample(text, i) for i, text in enumerate(texts)])


def test_exact_match_compares_the_whole_text():
    def answered(text: str) -> float:
        return exact_match(PROMPT, Answer(text=text, finish_reason="stop", num_tokens=1))

    assert [answered(t) for t in ("2", " 2\n", "22", "")] == [1.0, 1.0, 0.0, 0.0]


@pytest.mark.slow
async def test_a_file_reward_sees_prompt_and_sample_and_keeps_the_order(tmp_path):
    path = write_reward(
        tmp_path,
        """
        def reward(prompt, sample):
            assert prompt.metadata["level"] == "easy" and sample.finish_reason == "stop"
            print("a grader may print")
            return {"right": float(sample.text == prompt.answer), "short": 0.5}
        """,
    )
    scored = await score(tmp_path, f"{path}:reward", "2", "3")
    assert [s.reward for s in scored] == [1.5, 0.5]
    assert scored[0].reward_parts == {"right": 1.0, "short": 0.5}


@pytest.mark.slow
async def test_a_group_reward_and_an_async_one_are_called_as_such(tmp_path):
    path = write_reward(
        tmp_path,
        """
        async def ranked(prompt, samples):
            return [len(s.text) for s in samples]
        """,
    )
    assert [s.reward for s in await score(tmp_path, f"{path}:ranked", "a", "bbb")] == [1.0, 3.0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("def reward(prompt, sample): return None", "must return a number, got NoneType"),
        ("def reward(prompt, sample): return 'high'", "must return a number, got str"),
        ("def reward(prompt, sample): return float('nan')", "must return a finite number"),
        ("def reward(prompt, samples): return [1.0]", "must return 2 scores for 2 samples, got 1"),
        ("def reward(prompt, sample): return 1 / 0", "raised ZeroDivisionError"),
        ("def reward(prompt, sample):\n    import os\n    os._exit(3)", "ended its process on prompt 0"),
        ("def reward(prompt, sample):\n    while True: pass", "took over 0.5 s on prompt 0 and was ended"),
    ],
)
async def test_a_failure_is_an_error_and_never_a_number(tmp_path, body, message):
    path = write_reward(tmp_path, body)
    with pytest.raises(RewardError, match=message):
        await score(tmp_path, f"{path}:reward", "2", "3", timeout_s=0.5)


@pytest.mark.slow
async def test_the_pool_grades_on_after_a_grader_was_ended(tmp_path):
    path = write_reward(
        tmp_path,
        """
        def reward(prompt, sample):
            while sample.text == "hang": pass
            return 1.0
        """,
    )
    config = RewardConfig(function=f"{path}:reward", timeout_s=0.5)
    async with GraderPool(config, log=tmp_path / "rewards.log") as pool:
        hung, graded = await asyncio.gather(
            pool(PROMPT, [sample("hang")]), pool(PROMPT, [sample("2")]), return_exceptions=True
        )
    assert isinstance(hung, RewardError)
    assert isinstance(graded, list)
    assert graded[0].reward == 1.0


@pytest.mark.slow
async def test_a_file_that_fails_on_import_is_told_at_start(tmp_path):
    path = write_reward(tmp_path, "import no_such_module\ndef reward(prompt, sample): return 1.0")
    with pytest.raises(RewardError, match="could not be loaded"):
        await score(tmp_path, f"{path}:reward", "2")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("exact_mach", "one of .*did you mean 'exact_match'"),
        ("none.py:reward", "must name a readable file"),
        ("{path}:rewad", "must name a function of .*did you mean 'reward'"),
        ("{path}:alone", r"must take \(prompt, sample\) or \(prompt, samples\)"),
    ],
)
def test_a_name_that_is_no_reward_is_refused_without_running_code(tmp_path, name, message):
    path = write_reward(tmp_path, "raise SystemExit\ndef reward(prompt, sample): ...\ndef alone(prompt): ...")
    with pytest.raises(ConfigError, match=message):
        check_reward(name.format(path=path))


def test_scores_may_be_any_kind_of_number():
    values = [True, 2, 0.5, np.float32(0.25), np.array(3)]
    assert [s.value for s in to_scores("r", values, expected=5)] == [1.0, 2.0, 0.5, 0.25, 3.0]
