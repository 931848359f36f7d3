import pytest

from slime_rl.buffer.pacing import pacing_of
from slime_rl.config_file import validate


@pytest.fixture
def config():
    return validate(
        {
            "run": {"folder": "runs/a", "seed": 3},
            "model": {"path": "m"},
            "data": {"path": "d.jsonl", "max_epochs": 2},
            "loop": {"steps": 5, "groups_per_step": 4, "max_lag": 1, "wait_timeout_s": 60.0},
            "sampling": {"temperature": 0.8},
            "trainer": {"step_timeout_s": 100.0},
        }
    )


def test_the_pacing_follows_from_the_configuration(config):
    pacing = pacing_of(config, run_id="a", num_prompts=7)
    assert (pacing.slots, pacing.num_groups, pacing.num_issues) == (8, 20, 14)
    assert (pacing.temperature, pacing.seed, pacing.shuffle) == (0.8, 3, True)
    assert (pacing.wait_timeout_s, pacing.slot_timeout_s) == (60.0, 160.0)


def test_each_epoch_issues_every_prompt_once(config):
    pacing = pacing_of(config, run_id="a", num_prompts=7)
    epochs = [[pacing.prompt_index(7 * epoch + i) for i in range(7)] for epoch in range(2)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(7))] * 2
    assert epochs[0] != epochs[1]
