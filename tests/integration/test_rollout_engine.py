"""The real engine: what it samples, how weights reach it, and how it ends."""

import asyncio
import os
import signal
import time

import numpy as np
import psutil
import pytest

from slime_rl.config import ModelConfig, RolloutConfig, SamplingConfig
from slime_rl.errors import EngineError, WeightsError
from slime_rl.rollout.address import Address, Keys
from slime_rl.rollout.engine import Engine
from slime_rl.rollout.engine_http import EngineHttp
from slime_rl.rollout.single_turn import SingleTurn
from slime_rl.types import Finish, Prompt, Version

pytestmark = [pytest.mark.engine, pytest.mark.slow]

LOGPROB_TOLERANCE = 3e-5
DEATH_TIMEOUT_S = 20.0
PROMPT = [10, 20, 30, 40, 50]


async def sample(http, num_samples=4, temperature=1.0, max_new_tokens=32, stop_token_ids=()):
    return await http.generate(
        PROMPT,
        num_samples=num_samples,
        temperature=temperature,
        max_new_tokens=max_new_tokens,
        stop_token_ids=stop_token_ids,
    )


def reference(weights, completion, temperature=1.0):
    """The log-probs of a completion's tokens by Hugging Face."""
    return weights.logprobs([*PROMPT, *completion.tokens.tolist()], temperature)[len(PROMPT) - 1 :]


@pytest.mark.parametrize("temperature", [0.7, 1.0])
async def test_logprobs_equal_a_forward_of_hugging_face_at_the_sampling_temperature(
    http, publisher, new_weights, temperature
):
    weights = new_weights()
    await publisher().publish(weights.version, weights.tensors())
    for completion in await sample(http, temperature=temperature):
        assert np.abs(completion.logprobs - reference(weights, completion, temperature)).max() < LOGPROB_TOLERANCE


async def test_an_engine_starts_from_the_folder_that_the_trainer_writes(started):
    offset = len(started.prompt)
    for completion in started.completions:
        expected = started.weights.logprobs([*started.prompt, *completion.tokens.tolist()], 1.0)[offset - 1 :]
        assert np.abs(completion.logprobs - expected).max() < LOGPROB_TOLERANCE
        assert {span.version for span in completion.versions} == {started.weights.version}


async def test_one_request_brings_a_whole_group_of_different_samples(http, renderer):
    program = SingleTurn(http=http, renderer=renderer, sampling=SamplingConfig(max_new_tokens=16))
    samples = await program(Prompt(index=3, text="1+2="), num_samples=4, temperature=1.0)
    prompt = renderer.encode_prompt(Prompt(index=3, text="1+2="))
    assert [s.trajectory for s in samples] == [0, 1, 2, 3]
    assert len({tuple(s.tokens) for s in samples}) == 4
    for one in samples:
        assert one.tokens[: len(prompt)].tolist() == prompt
        assert not one.loss_mask[: len(prompt)].any()
        assert one.loss_mask[len(prompt) :].all()
        assert one.finish in (Finish.STOP, Finish.LENGTH)


class Drafts:
    """Keeps so many parts of samples, then none any more."""

    group = 0

    def __init__(self, limit):
        self.limit, self.kept = limit, []

    async def segments(self):
        return list(self.kept)

    async def extend(self, segment):
        if len(self.kept) == self.limit:
            raise EngineError("the worker was cut off")
        self.kept.append(segment)


async def test_a_long_answer_goes_on_from_its_durable_parts_as_if_it_had_never_been_cut(
    http, renderer, publisher, new_weights
):
    weights = new_weights()
    await publisher().publish(weights.version, weights.tensors())
    program = SingleTurn(http=http, renderer=renderer, sampling=SamplingConfig(max_new_tokens=40), segment_tokens=16)
    prompt = Prompt(index=3, text="1+2=")
    drafts = Drafts(3)
    with pytest.raises(EngineError, match="cut off"):
        await program(prompt, num_samples=2, temperature=1.0, drafts=drafts)
    before = {(part.index, part.start): part.tokens.tolist() for part in drafts.kept}
    drafts.limit = 100
    samples = await program(prompt, num_samples=2, temperature=1.0, drafts=drafts)
    for (index, start), tokens in before.items():
        assert samples[index].tokens[start : start + len(tokens)].tolist() == tokens
    offset = len(renderer.encode_prompt(prompt))
    for one in samples:
        expected = weights.logprobs(one.tokens.tolist(), 1.0)[offset - 1 :]
        assert np.abs(one.logprobs[offset:] - expected).max() < LOGPROB_TOLERANCE
        assert {span.version for span in one.versions} == {weights.version}


async def test_a_sample_ends_with_the_stop_token(http):
    every_token = range(100)
    for completion in await sample(http, stop_token_ids=every_token):
        assert completion.finish == Finish.STOP
        assert len(completion.tokens) == 1


@pytest.mark.parametrize("transport", ["tensor", "disk"])
async def test_after_a_publish_the_engine_samples_from_the_new_weights(
    http, publisher, new_weights, transport, tmp_path
):
    weights = new_weights()
    await publisher(transport).publish(weights.version, weights.tensors())
    for completion in await sample(http):
        assert [(s.version, s.start, s.end) for s in completion.versions] == [
            (weights.version, len(PROMPT), len(PROMPT) + len(completion.tokens))
        ]
        assert np.abs(completion.logprobs - reference(weights, completion)).max() < LOGPROB_TOLERANCE
    assert list(tmp_path.iterdir()) == []


async def test_publishing_leaves_no_helper_process_and_no_shared_memory(publisher, new_weights):
    processes, memory = psutil.Process().children(recursive=True), set(os.listdir("/dev/shm"))
    weights = new_weights()
    await publisher().publish(weights.version, weights.tensors())
    assert psutil.Process().children(recursive=True) == processes
    assert set(os.listdir("/dev/shm")) <= memory


async def publish_expecting_failure(http, publisher, weights, tensors, match):
    with pytest.raises(WeightsError, match=match):
        await publisher().publish(weights.version, tensors)
    await publisher().publish(weights.version, weights.tensors())
    assert len(await sample(http)) == 4


async def test_a_wrong_name_is_caught_and_the_next_publish_works(http, publisher, new_weights):
    weights = new_weights()
    tensors = [(name.replace("layers.1.mlp.down_proj", "layers.1.mlp.down"), t) for name, t in weights.tensors()]
    await publish_expecting_failure(
        http, publisher, weights, tensors, r"layers\.1\.mlp\.down\.weight was published but"
    )


async def test_a_missing_tensor_is_caught(http, publisher, new_weights):
    weights = new_weights()
    tensors = [(name, t) for name, t in weights.tensors() if "layers.0.self_attn.k_proj" not in name]
    await publish_expecting_failure(http, publisher, weights, tensors, r"qkv_proj\.weight was not published")


async def test_a_value_changed_on_the_way_is_caught(http, publisher, new_weights, monkeypatch):
    weights = new_weights()
    damaged = [(name, t.clone()) for name, t in weights.tensors()]
    damaged[7][1].view(-1)[3] += 1.0
    faulty = publisher()
    honest_hold = faulty._hold
    monkeypatch.setattr(faulty, "_hold", lambda tensors: honest_hold(damaged))
    with pytest.raises(WeightsError, match="differs"):
        await faulty.publish(weights.version, weights.tensors())
    await publisher().publish(weights.version, weights.tensors())
    assert len(await sample(http)) == 4


async def test_requests_in_flight_live_through_updates_and_each_token_names_the_weights_that_wrote_it(
    http, publisher, new_weights
):
    history = {}

    async def publish_new():
        weights = new_weights()
        await publisher().publish(weights.version, weights.tensors())
        history[weights.version] = weights

    await publish_new()
    async with asyncio.TaskGroup() as group:
        requests = [group.create_task(sample(http, num_samples=1, max_new_tokens=96)) for _ in range(64)]
        while not all(request.done() for request in requests):
            await publish_new()
    completions = [request.result()[0] for request in requests]
    assert all(c.finish == Finish.STOP or len(c.tokens) == 96 for c in completions)
    assert sum(len(c.versions) >= 2 for c in completions) >= 16
    for completion in completions[::4]:
        check_spans(completion, history)


def check_spans(completion, history):
    """The spans follow one another over all tokens, and each one's log-probs are those of its version."""
    starts = [s.start for s in completion.versions]
    ends = [s.end for s in completion.versions]
    assert starts == [len(PROMPT), *ends[:-1]]
    assert ends[-1] == len(PROMPT) + len(completion.tokens)
    for span in completion.versions:
        part = slice(span.start - len(PROMPT), span.end - len(PROMPT))
        expected = reference(history[span.version], completion)
        assert np.abs(completion.logprobs - expected)[part].max() < LOGPROB_TOLERANCE


async def test_an_aborted_sample_is_an_error_of_its_group(http, renderer):
    program = SingleTurn(http=http, renderer=renderer, sampling=SamplingConfig(max_new_tokens=400))
    request = asyncio.create_task(program(Prompt(index=7, text="a"), num_samples=32, temperature=1.0))
    while not request.done():
        await http.abort_all()
    with pytest.raises(EngineError, match=r"aborted \d+ of 32 samples of prompt 7"):
        await request


async def test_arguments_pass_through_to_the_server(http):
    with pytest.raises(EngineError, match=r"engine 0 at .*generate: status 400: .*context length .512 tokens"):
        await http.generate([5] * 600, num_samples=1, temperature=1.0, max_new_tokens=4, stop_token_ids=[])


async def test_a_wrong_key_opens_nothing(engine):
    stranger = Address("engine 0", engine.address.url, Keys("wrong", "wrong"))
    async with EngineHttp(stranger, timeout_s=10.0) as http:
        with pytest.raises(EngineError, match="401"):
            await sample(http)
        with pytest.raises(EngineError, match="401"):
            await http.pause("retract")


async def test_the_log_is_private_and_holds_no_key(engine, keys, log_folder):
    await engine.check()
    log = log_folder / "engine-0.log"
    text = log.read_text()
    assert "api_key" in text
    assert keys.api not in text
    assert keys.admin not in text
    assert log.stat().st_mode & 0o077 == 0


async def test_no_secret_stands_in_a_command_line(engine, keys):
    launcher = psutil.Process(engine.process.pid)
    lines = [" ".join(p.cmdline()) for p in [launcher, *launcher.children(recursive=True)]]
    assert len(lines) >= 4
    assert not any(keys.api in line or keys.admin in line for line in lines)


async def test_a_killed_engine_is_an_error_with_its_cause_and_leaves_no_process(model_config, keys, tmp_path):
    engine = Engine(9, model=model_config, rollout=RolloutConfig(), log_folder=tmp_path, keys=keys, seed=0)
    address = await engine.start(Version(0))
    processes = psutil.Process(engine.process.pid).children(recursive=True)
    async with EngineHttp(address, timeout_s=DEATH_TIMEOUT_S) as http:
        request = asyncio.create_task(sample(http, max_new_tokens=4000))
        os.kill(processes[0].pid, signal.SIGKILL)
        start = time.monotonic()
        with pytest.raises(EngineError, match=r"engine 9 at .*no answer"):
            await request
        assert time.monotonic() - start < DEATH_TIMEOUT_S
    _, left = psutil.wait_procs(processes, timeout=DEATH_TIMEOUT_S)
    assert left == []
    await asyncio.to_thread(engine.process.wait, DEATH_TIMEOUT_S)
    with pytest.raises(EngineError, match=r"engine 9 ended with exit status 137; the last lines of .*engine-9\.log"):
        await engine.check()
    engine.stop()


async def test_an_engine_that_cannot_start_says_why(keys, tmp_path):
    model = ModelConfig(path=str(tmp_path / "no_such_model"), dtype="float32")
    engine = Engine(8, model=model, rollout=RolloutConfig(), log_folder=tmp_path, keys=keys, seed=0)
    with pytest.raises(EngineError, match=r"(?s)engine 8 ended with exit status 1; the last lines of .*no_such_model"):
        await engine.start(Version(0))


async def test_an_engine_that_takes_too_long_is_ended(model_config, keys, tmp_path):
    before = set(psutil.Process().children(recursive=True))
    rollout = RolloutConfig(start_timeout_s=1.0)
    engine = Engine(7, model=model_config, rollout=rollout, log_folder=tmp_path, keys=keys, seed=0)
    with pytest.raises(EngineError, match=r"engine 7 was not ready within 1 s \(rollout\.start_timeout_s\)"):
        await engine.start(Version(0))
    assert set(psutil.Process().children(recursive=True)) <= before
