"""Real Megatron ranks against plain Hugging Face, and against themselves in another layout."""

from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import load_file

from slime_rl.errors import ModelError, TrainerError
from slime_rl.types import Span, Version

pytestmark = [pytest.mark.megatron, pytest.mark.slow]

MODELS = ["qwen3", "qwen2", "llama", "qwen3-untied", "llama-tied"]


def assert_close(found, expected, rel=1e-5):
    """Weights agree relative to the largest value of each tensor."""
    assert found.keys() == expected.keys()
    for name, weight in expected.items():
        assert np.abs(found[name] - weight).max() <= rel * np.abs(weight).max(), name


def with_samples(groups, change):
    return [replace(group, samples=tuple(map(change, group.samples))) for group in groups]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_logprobs_equal_hugging_face(ranks, models, new_config, new_groups, model, temperature):
    groups = new_groups([3, 2], temperature=temperature)
    groups = ranks.one("record_logprobs", folder=models[model], groups=groups)
    (report,), _ = ranks.train(new_config(models[model]), groups, 1)
    assert report.maxima["logprob_abs_diff"] < 1e-5
    assert report.counts["logprob_abs_diff"] == sum(s.num_trained for group in groups for s in group.samples)
    assert report.mean("correction_weight") == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("model", MODELS)
def test_load_and_export_are_bit_equal(ranks, models, new_config, new_checkpoint, model):
    _, exported = ranks.train(new_config(models[model]), [], 0, save=new_checkpoint(0))
    original = load_file(f"{models[model]}/model.safetensors")
    assert exported.keys() == original.keys()
    for weights in (exported, load_file(new_checkpoint(0).path / "model.safetensors")):
        assert all(np.array_equal(weights[name], weight) for name, weight in original.items())


def test_saved_folder_loads_in_transformers_in_the_type_of_the_model(
    ranks, models, new_config, new_groups, new_checkpoint
):
    config = new_config(models["qwen3"], model={"dtype": "bfloat16"})
    _, exported = ranks.train(config, new_groups([2, 2]), 1, save=new_checkpoint(1))
    read = ranks.one("read_weights", folder=str(new_checkpoint(1).path))
    assert exported.keys() == read.keys()
    assert all(np.array_equal(exported[name], weight) for name, weight in read.items())


OBJECTIVES = [
    {"reducer": "sequence_mean"},
    {"reducer": "constant", "reducer_length": 40},
    {"estimator": "rloo"},
    {"estimator": "reinforce_pp", "reducer": "sequence_mean"},
    {"loss": "cispo"},
    {"entropy_bonus": 0.5},
    {"loss": "gspo", "reducer": "sequence_mean"},
    {"correction": "icepop", "correction_low": 0.2, "correction_high": 5.0},
]


@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda objective: "-".join(map(str, objective.values())))
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_every_objective_equals_a_plain_one_in_every_layout(
    ranks, models, new_config, new_groups, objective, num_ranks
):
    groups = new_groups([4, 2, 3])
    config = new_config(models["qwen3"], objective=objective, trainer={"max_tokens_per_microbatch": 50})
    shares = [[group.id for group in groups]] * 2
    losses, norms, expected = ranks.one("train_plainly", config=config, groups=groups, shares=shares)
    if num_ranks == 1:
        reports, weights = ranks.train(config, groups, 2)
    else:
        each = [{"shares": [share] * 2} for share in ([0, 2], [1])]
        reports, weights = ranks.both("train", each, config=config, groups=groups)[0]
    assert [report.mean("loss") for report in reports] == pytest.approx(losses, rel=1e-5, abs=1e-6)
    assert [report.mean("grad_norm") for report in reports] == pytest.approx(norms, rel=1e-5)
    for name, weight in expected.items():
        np.testing.assert_allclose(weights[name], weight, rtol=1e-5, atol=2e-6, err_msg=name)


@pytest.mark.parametrize(("model", "temperature"), [("qwen3", 1.0), ("qwen2", 0.7), ("llama", 1.3)])
def test_three_grpo_steps_equal_hugging_face_with_adamw(ranks, models, new_config, new_groups, model, temperature):
    groups = new_groups([4, 2, 3], temperature=temperature)
    config = new_config(models[model])
    reports, weights = ranks.train(config, groups, 3)
    shares = [[group.id for group in groups]] * 3
    losses, norms, expected = ranks.one("train_plainly", config=config, groups=groups, shares=shares)
    assert [report.mean("loss") for report in reports] == pytest.approx(losses, rel=1e-5, abs=1e-6)
    assert [report.mean("grad_norm") for report in reports] == pytest.approx(norms, rel=1e-5)
    assert_close(weights, expected, rel=1e-5)


LAYOUTS = {
    "one group each way": [[0, 2], [1, 3]],
    "uneven": [[3], [0, 1, 2]],
    "another order": [[2, 1], [3, 0]],
    "a rank without a group": [[0, 1, 2, 3], []],
}


@pytest.fixture(scope="module")
def alone(ranks, models, new_config, new_groups):
    """Two steps of one rank over everything in one micro-batch."""
    return ranks.train(new_config(models["qwen3"]), new_groups([4, 2, 3, 5]), 2)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("max_tokens", [8192, 64, 1])
def test_two_ranks_equal_one(ranks, models, new_config, new_groups, alone, layout, max_tokens):
    config = new_config(models["qwen3"], trainer={"max_tokens_per_microbatch": max_tokens})
    each = [{"shares": [share] * 2} for share in LAYOUTS[layout]]
    answers = ranks.both("train", each, config=config, groups=new_groups([4, 2, 3, 5]))
    reports, weights = alone
    for found_reports, found_weights in answers:
        assert_close(found_weights, weights)
        for found, expected in zip(found_reports, reports, strict=True):
            for name in expected.sums:
                assert found.mean(name) == pytest.approx(expected.mean(name), rel=1e-5, abs=1e-7, nan_ok=True), name


def test_two_ranks_equal_one_with_the_distributed_optimizer(ranks, models, new_config, new_groups, alone):
    megatron = {"use_distributed_optimizer": True, "overlap_grad_reduce": True, "overlap_param_gather": True}
    config = new_config(models["qwen3"], trainer={"max_tokens_per_microbatch": 64, "megatron": megatron})
    each = [{"shares": [share] * 2} for share in ([0, 2], [1, 3])]
    for _, weights in ranks.both("train", each, config=config, groups=new_groups([4, 2, 3, 5])):
        assert_close(weights, alone[1])


def test_the_comparison_notices_a_denominator_of_each_rank(ranks, models, new_config, new_groups, alone):
    config = new_config(models["qwen3"])
    each = [{"shares": [share] * 2} for share in ([3], [0, 1, 2])]
    answers = ranks.both("train_wrongly", each, config=config, groups=new_groups([4, 2, 3, 5]))
    with pytest.raises(AssertionError):
        assert_close(answers[0][1], alone[1])


def test_reordered_samples_train_the_same(ranks, models, new_config, new_groups, alone):
    config = new_config(models["qwen3"], trainer={"max_tokens_per_microbatch": 64})
    groups = [replace(group, samples=group.samples[::-1]) for group in new_groups([4, 2, 3, 5])][::-1]
    _, weights = ranks.train(config, groups, 2)
    assert_close(weights, alone[1])


def test_values_at_masked_out_tokens_change_nothing(ranks, models, new_config, new_groups, alone):
    def poison(sample):
        return replace(sample, logprobs=np.where(sample.loss_mask, sample.logprobs, np.nan).astype(np.float32))

    _, weights = ranks.train(new_config(models["qwen3"]), with_samples(new_groups([4, 2, 3, 5]), poison), 2)
    assert_close(weights, alone[1], rel=0)


def test_lag_is_counted_by_token(ranks, models, new_config, new_groups):
    reports, _ = ranks.train(new_config(models["qwen3"]), new_groups([2, 2]), 3)
    assert [report.mean("lag") for report in reports] == [0.0, 1.0, 2.0]
    assert [report.counts["logprob_abs_diff"] > 0 for report in reports] == [True, False, False]
    assert reports[2].maxima["lag"] == 2.0
    assert [report.version for report in reports] == [1, 2, 3]


def test_a_step_without_trained_tokens_is_skipped_and_counted(ranks, models, new_config, new_groups):
    def mask(sample):
        return replace(sample, loss_mask=np.zeros_like(sample.loss_mask))

    config = new_config(models["qwen3"])
    (report,), weights = ranks.train(config, with_samples(new_groups([2, 2]), mask), 1)
    assert report.sums["skipped"] == 1.0
    assert report.version == 1
    assert_close(weights, ranks.train(config, [], 0)[1], rel=0)


def test_what_is_no_number_stops_before_the_optimiser(ranks, models, new_config, new_groups):
    arguments = {"config": new_config(models["qwen3"]), "groups": new_groups([2, 2])}
    for poisoned, message in (("loss", "step 1, groups 0, 1: the loss is nan in groups 0, 1"), ("gradient", "step 1")):
        fault, unchanged = ranks.alone("poisoned_step", poisoned=poisoned, **arguments)
        assert fault.startswith(message)
        assert unchanged


def test_both_ranks_stop_when_one_loss_is_no_number(ranks, models, new_config, new_groups):
    def overflow(sample):
        return replace(sample, temperature=1e-45)

    groups = new_groups([2, 2])
    groups[1] = with_samples(groups[1:], overflow)[0]
    with pytest.raises(TrainerError, match="step 0, groups 0: the loss is nan in groups of other ranks"):
        ranks.both("train", [{"shares": [[0]]}, {"shares": [[1]]}], config=new_config(models["qwen3"]), groups=groups)


def test_supervised_steps_learn_what_is_marked(ranks, models, new_config, new_groups):
    def unscored(sample):
        return replace(sample, reward=None)

    config = new_config(models["qwen3"], objective={"loss": "sft"}, trainer={"lr": 3e-3})
    groups = with_samples(new_groups([8, 8]), unscored)
    reports, _ = ranks.train(config, groups, 10)
    losses = [report.mean("loss") for report in reports]
    assert losses[-1] < 0.7 * losses[0]
    plain, _, _ = ranks.one("train_plainly", config=config, groups=groups, shares=[[0, 1]] * 10)
    assert losses == pytest.approx(plain, rel=1e-4)


def test_probability_is_that_of_writing_every_marked_token_of_a_sample(ranks, models, new_config, new_groups):
    groups = ranks.one("record_logprobs", folder=models["qwen3"], groups=new_groups([3, 2, 4], lengths=(3, 6)))
    samples = [sample for group in groups for sample in group.samples if sample.num_trained]
    expected = np.mean([np.exp(sample.logprobs.sum()) for sample in samples])
    config = new_config(models["qwen3"], objective={"loss": "sft"}, trainer={"max_tokens_per_microbatch": 16})
    for shares in ([[0, 1, 2], []], [[1], [2, 0]]):
        each = [{"share": share} for share in shares]
        assert ranks.both("probability", each, config=config, groups=groups) == pytest.approx([expected] * 2, rel=1e-5)


def test_the_comparison_with_an_engine_sees_every_difference(ranks, models, new_config, new_groups):
    groups = ranks.one("record_logprobs", folder=models["qwen3"], groups=new_groups([3, 2], lengths=(3, 6)))
    each, config = [{"share": [0, 1]}, {"share": []}], new_config(models["qwen3"])
    for mean, top in ranks.both("compare", each, config=config, groups=groups):
        assert mean <= top < 1e-5
    shifted = [
        replace(group, samples=tuple(replace(s, logprobs=s.logprobs + np.float32(0.25)) for s in group.samples))
        for group in groups
    ]
    for found in ranks.both("compare", each, config=config, groups=shifted):
        assert found == pytest.approx((0.25, 0.25), rel=1e-3)


def test_bfloat16_keeps_master_weights_and_gradients_in_float32(ranks, models, new_config, new_groups):
    config = new_config(models["qwen3"], model={"dtype": "bfloat16"})
    found = ranks.alone("inspect_rank", config=config, groups=new_groups([2, 2]))
    assert found["exported"] == {"torch.bfloat16"}
    assert found["master"] == found["moments"] == found["gradients"] == {"torch.float32"}


def test_ranks_on_one_machine_listen_on_loopback_only(ranks, models, new_config, new_groups):
    found = ranks.alone("inspect_rank", config=new_config(models["qwen3"]), groups=new_groups([2, 2]))
    assert found["listeners"] == {"127.0.0.1"}


def test_the_learning_rate_warms_up_and_falls(ranks, models, new_config, new_groups):
    config = new_config(models["qwen3"], trainer={"lr_warmup_steps": 2, "lr_schedule": "linear"})
    reports, _ = ranks.train(config, new_groups([2]), 4)
    rates = [report.mean("lr") for report in reports]
    assert rates == pytest.approx([5e-4, 1e-3, 1e-3 * 8 / 9, 1e-3 * 7 / 9])


def test_steps_come_in_order(ranks, models, new_config, new_groups):
    with pytest.raises(TrainerError, match="step 5 starts from version 5, but the trainer is at 0"):
        ranks.alone("step_out_of_order", config=new_config(models["qwen3"]), groups=new_groups([2]))


def test_tokens_of_an_older_version_stay_out_of_the_log_prob_check(ranks, models, new_config, new_groups):
    def mixed(sample):
        return replace(sample, versions=(Span(Version(0), 0, 3), Span(Version(1), 3, sample.num_tokens)))

    groups = with_samples(new_groups([2, 2]), mixed)
    reports, _ = ranks.train(new_config(models["qwen3"]), groups, 2)
    newer = sum(int(s.loss_mask[3:].sum()) for group in groups for s in group.samples)
    assert reports[1].counts["logprob_abs_diff"] == newer


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "gpt2"}, "whose model_type is one of llama, qwen2, qwen3, got 'gpt2'"),
        ({"attention_bias": True}, "whose attention_bias is off .model_type qwen3., got True"),
        (
            {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0}},
            "whose rope_type is default, linear or llama3 as released, got 'yarn'",
        ),
        ({"num_hidden_layers": 4}, "must be equal to the number of `layer_types`"),
        ({"num_hidden_layers": 4, "layer_types": ["full_attention"] * 4}, "a weight is missing"),
    ],
)
def test_a_model_that_cannot_be_built_is_refused(ranks, models, new_config, changed_model, change, message):
    with pytest.raises(ModelError, match=message):
        ranks.train(new_config(changed_model(models["qwen3"], change)), [], 0)


def test_a_folder_without_model_is_refused(ranks, new_config, tmp_path):
    with pytest.raises(ModelError, match=r"must name a model with a config\.json, got No such file"):
        ranks.train(new_config(str(tmp_path)), [], 0)
