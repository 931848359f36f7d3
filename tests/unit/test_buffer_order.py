import subprocess
import sys

import pytest

from slime_rl.buffer.order import prompt_index


def epoch(number, *, size=50, seed=1, shuffle=True):
    ids = range(number * size, (number + 1) * size)
    return [prompt_index(i, num_prompts=size, seed=seed, shuffle=shuffle) for i in ids]


@pytest.mark.parametrize("number", [0, 1, 7])
def test_an_epoch_visits_every_row_once(number):
    assert sorted(epoch(number)) == list(range(50))


def test_epochs_and_seeds_are_ordered_differently():
    orders = [epoch(0), epoch(1), epoch(0, seed=2), epoch(0, shuffle=False)]
    assert len({tuple(order) for order in orders}) == 4


def test_without_shuffling_the_order_is_that_of_the_file():
    assert epoch(3, shuffle=False) == list(range(50))


def test_the_order_is_the_same_in_every_process_and_release():
    assert [prompt_index(i, num_prompts=10, seed=2**70, shuffle=True) for i in range(10)] == [
        8, 5, 0, 1, 6, 4, 9, 7, 3, 2,
    ]  # fmt: skip


def test_light_modules_of_the_buffer_import_no_heavy_library():
    code = (
        "import sys, slime_rl.buffer.dataset, slime_rl.buffer.memory, slime_rl.buffer.pacing\n"
        "print({'torch', 'ray', 'megatron', 'sglang', 'redis'} & set(sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"
