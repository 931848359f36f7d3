import asyncio
import textwrap

import numpy as np
import psutil
import pytest
import uvloop

from slime_rl.buffer.dataset import load_prompts
from slime_rl.config import ColumnsConfig, RewardConfig
from slime_rl.errors import ConfigError, RewardError
from slime_rl.rewards.exact_match import exact_match
from slime_rl.rewards.functions import REWARD, Answer, check_function, to_scores
from slime_rl.rewards.pool import GraderPool
from slime_rl.rewards.trial import check_loads
from slime_rl.rewards.wire import HEADER_BYTES, frame, unframe
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
HANG_S = 60.0
"""No call of a pool may take longer: a place that is lost would keep its callers waiting for ever."""


def write_reward(tmp_path, body: str) -> str:
    file = tmp_path / "rewards.py"
    file.write_text(textwrap.dedent(body))
    return str(file)


def make_pool(tmp_path, function: str, *, timeout_s: float = 30.0, num_processes: int = 1) -> GraderPool:
    config = RewardConfig(function=function, timeout_s=timeout_s, num_processes=num_processes)
    return GraderPool(config, log=tmp_path / "rewards.log")


async def score(tmp_path, function: str, *texts: str, timeout_s: float = 30.0, prompt: Prompt = PROMPT) -> list[Sample]:
    async with make_pool(tmp_path, function, timeout_s=timeout_s) as pool:
        return await pool(prompt, [sample(text, i) for i, text in enumerate(texts)])


@pytest.fixture
def no_process_left():
    """Fails a test after which a process is there that was not before."""
    before = set(psutil.Process().children(recursive=True))
    yield
    assert set(psutil.Process().children(recursive=True)) <= before


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
    ],
)
async def test_a_failure_is_an_error_and_never_a_number(tmp_path, body, message):
    path = write_reward(tmp_path, body)
    with pytest.raises(RewardError, match=message):
        await score(tmp_path, f"{path}:reward", "2", "3")


@pytest.mark.slow
async def test_a_sample_that_cannot_be_graded_leaves_the_others_their_scores(tmp_path):
    path = write_reward(tmp_path, "def reward(prompt, sample): return 1 / float(sample.text)")
    with pytest.raises(RewardError, match=r"raised ZeroDivisionError.* at .*\.py:\d+ \(1 of 3 samples\)$") as caught:
        await score(tmp_path, f"{path}:reward", "2", "0", "4")
    assert [s.reward for s in caught.value.scored] == [0.5, 0.25]


HANGING = """
    import pathlib, subprocess
    here = pathlib.Path(__file__)
    if here.with_name("broken").exists():
        raise RuntimeError("the judge is gone")
    def reward(prompt, sample):
        if sample.text == "hang":
            here.with_name("busy").touch()
            subprocess.run(["sleep", "600"])
        return 1.0
"""


async def hang(pool: GraderPool, tmp_path) -> asyncio.Task:
    """A call that keeps its grader busy for ever, once it does."""
    call = asyncio.create_task(pool(PROMPT, [sample("hang")]))
    while not (tmp_path / "busy").exists():  # noqa: ASYNC110  another process makes it
        await asyncio.sleep(0.01)
    return call


@pytest.mark.slow
async def test_a_call_that_takes_too_long_is_ended_with_what_it_started(tmp_path, no_process_left):
    path = write_reward(tmp_path, HANGING)
    with pytest.raises(RewardError, match=r"took over 0\.5 s on prompt 0 and was ended"):
        await score(tmp_path, f"{path}:reward", "hang", timeout_s=0.5)


@pytest.mark.slow
@pytest.mark.parametrize("end", ["timeout", "cancel"])
async def test_the_only_grader_is_replaced_after_it_was_ended(tmp_path, no_process_left, end):
    path = write_reward(tmp_path, HANGING)
    timeout_s = 2.0 if end == "timeout" else HANG_S
    async with asyncio.timeout(HANG_S), make_pool(tmp_path, f"{path}:reward", timeout_s=timeout_s) as pool:
        call = await hang(pool, tmp_path)
        if end == "cancel":
            call.cancel()
        [failure] = await asyncio.gather(call, return_exceptions=True)
        assert isinstance(failure, RewardError if end == "timeout" else asyncio.CancelledError)
        [graded] = await pool(PROMPT, [sample("2")])
    assert graded.reward == 1.0


@pytest.mark.slow
async def test_graders_that_cannot_be_replaced_are_an_error_of_each_call_until_they_can(tmp_path, no_process_left):
    path = write_reward(tmp_path, HANGING)
    async with asyncio.timeout(HANG_S), make_pool(tmp_path, f"{path}:reward") as pool:
        (tmp_path / "broken").touch()
        (await hang(pool, tmp_path)).cancel()
        for _ in range(2):
            with pytest.raises(
                RewardError, match=r"rewards\.py:reward could not be loaded \(RuntimeError: the judge is"
            ):
                await pool(PROMPT, [sample("2")])
        (tmp_path / "broken").unlink()
        [graded] = await pool(PROMPT, [sample("2")])
    assert graded.reward == 1.0


@pytest.mark.slow
@pytest.mark.parametrize(("first", "others"), [("pass", "1 / 0"), ("1 / 0", "time.sleep(600)")])
async def test_a_grader_that_cannot_start_takes_its_siblings_with_it(tmp_path, no_process_left, first, others):
    path = write_reward(
        tmp_path,
        f"""
        import os, time
        try:
            os.mkdir({str(tmp_path / "first")!r})
        except FileExistsError:
            {others}
        else:
            {first}
        def reward(prompt, sample): return 1.0
        """,
    )
    async with asyncio.timeout(HANG_S):
        with pytest.raises(RewardError, match=r"could not be loaded \(ZeroDivisionError: division by zero, at .*\.py:"):
            async with make_pool(tmp_path, f"{path}:reward", num_processes=3):
                pass


@pytest.mark.slow
async def test_a_pool_that_was_closed_starts_no_grader_for_a_call_that_waited(tmp_path, no_process_left):
    path = write_reward(tmp_path, HANGING)
    async with asyncio.timeout(HANG_S):
        async with make_pool(tmp_path, f"{path}:reward") as pool:
            calls = [await hang(pool, tmp_path), asyncio.create_task(pool(PROMPT, [sample("2")]))]
            await asyncio.sleep(0)
        failures = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(failure) for failure in failures] == [RewardError, RewardError]


ODD_ROW = r'{"prompt": "p", "answer": 123456789012345678901234567890, "big": [-36893488147419103233], "half": "\ud83d"}'


@pytest.mark.slow
async def test_whatever_a_row_of_json_can_hold_reaches_the_reward_as_it_was(tmp_path):
    path = write_reward(
        tmp_path,
        r"""
        def reward(prompt, sample):
            assert prompt.metadata == {"big": [-36893488147419103233], "half": "\ud83d"}
            return {"\udc00": float(sample.text == prompt.answer + "\ud83d")}
        """,
    )
    (tmp_path / "rows.jsonl").write_text(ODD_ROW)
    [prompt] = load_prompts(str(tmp_path / "rows.jsonl"), ColumnsConfig(), field="data.path")
    [graded] = await score(tmp_path, f"{path}:reward", "123456789012345678901234567890\ud83d", prompt=prompt)
    assert graded.reward_parts == {"\udc00": 1.0}


@pytest.mark.parametrize("number", [2**63, 2**64, -(2**63) - 1, 255 * 2**64, -(2**127), 10**400])
def test_integers_of_any_size_travel(number):
    assert unframe(frame({"number": number})[HEADER_BYTES:]) == {"number": number}


@pytest.mark.slow
async def test_a_prompt_that_cannot_travel_is_an_error_that_names_it(tmp_path):
    deep: list = []
    for _ in range(2000):
        deep = [deep]
    async with make_pool(tmp_path, "exact_match") as pool:
        for value in (deep, object()):
            with pytest.raises(RewardError, match="prompt 4 cannot be sent to reward exact_match: "):
                await pool(Prompt(index=4, text="p", metadata={"value": value}), [sample("2")])
        assert (await pool(PROMPT, [sample("2")]))[0].reward == 1.0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("import no_such_module", r"\(ModuleNotFoundError: No module named 'no_such_module', at .*rewards\.py:1\)"),
        ("raise ValueError('two\\nlines')", r"\(ValueError: two lines, at .*rewards\.py:1\)"),
        ("raise SystemExit(4)", r"\(SystemExit: 4, at .*rewards\.py:1\)"),
        ("import os\nos._exit(3)", r"\(it ended its process with exit status 3\)"),
        ("import time\ntime.sleep(600)", r"within 2 s"),
    ],
)
def test_a_file_that_does_not_load_is_a_mistake_told_in_one_line(tmp_path, no_process_left, body, message):
    path = write_reward(tmp_path, f"{body}\ndef reward(prompt, sample): return 1.0")
    timeout_s = 2.0 if "sleep" in body else HANG_S
    with pytest.raises(ConfigError, match=rf"^reward\.function must load {message}, got '.*rewards\.py:reward'$"):
        check_loads(REWARD, f"{path}:reward", timeout_s=timeout_s)


@pytest.mark.slow
def test_a_file_that_loads_is_accepted(tmp_path, no_process_left):
    path = write_reward(tmp_path, "print('hello')\ndef reward(prompt, sample): return 1.0")
    check_loads(REWARD, f"{path}:reward", timeout_s=HANG_S)
    check_loads(REWARD, "exact_match", timeout_s=HANG_S)


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
        check_function(REWARD, name.format(path=path))


def test_scores_may_be_any_kind_of_number():
    values = [True, 2, 0.5, np.float32(0.25), np.array(3)]
    assert [s.value for s in to_scores("r", values, expected=5)] == [1.0, 2.0, 0.5, 0.25, 3.0]


@pytest.mark.slow
def test_the_pool_grades_on_the_event_loop_of_rays_actors(tmp_path):
    path = write_reward(tmp_path, "def reward(prompt, sample): return float(sample.text)")
    assert [s.reward for s in uvloop.run(score(tmp_path, f"{path}:reward", "2", "3"))] == [2.0, 3.0]
