import bisect
import itertools
import subprocess
import sys

import numpy as np
import pytest

from slime_rl.buffer.order import MAX_PERIOD, Order, Source


def prompt_index(group_id, *, num_prompts, seed, shuffle):
    return Order((Source(num_prompts),), seed, shuffle).row(group_id)


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


def mix(*sources, seed=1, shuffle=True):
    return Order(tuple(Source(size, weight) for size, weight in sources), seed, shuffle)


def parts_of(order, ids):
    """The source and the row inside it of each id."""
    ends = list(itertools.accumulate(source.size for source in order.sources))
    rows = [order.row(id) for id in ids]
    return [(number := bisect.bisect_right(ends, row), row - (ends[number - 1] if number else 0)) for row in rows]


@pytest.mark.parametrize(
    "weights", [(1.0, 1.0), (0.7, 0.3), (0.1, 0.2, 0.7), (5, 3, 1, 1, 1), (1.0,) * 7, (97, 2, 1), (1000, 3000, 95)]
)
def test_after_any_number_of_groups_each_source_is_within_one_of_its_share(weights):
    parts = parts_of(mix(*((11, weight) for weight in weights)), range(2 * MAX_PERIOD))
    for source, weight in enumerate(weights):
        had = np.cumsum([part == source for part, _ in parts])
        due = np.arange(1, len(parts) + 1) * weight / sum(weights)
        assert np.abs(had - due).max() < 1


@pytest.mark.parametrize("weights", [(1e-9, 1.0), (0.123457, 3.3, 0.5), (1 / 3, 1 / 7, 1 / 11, 1 / 13)])
def test_awkward_weights_are_kept_to_one_part_of_the_longest_period_and_none_is_nothing(weights):
    parts = parts_of(mix(*((11, weight) for weight in weights)), range(MAX_PERIOD))
    for source, weight in enumerate(weights):
        had = sum(part == source for part, _ in parts)
        assert had >= 1
        assert abs(had - MAX_PERIOD * weight / sum(weights)) <= len(weights)


@pytest.mark.parametrize("shuffle", [True, False])
def test_every_source_visits_every_row_once_in_each_epoch_of_its_own(shuffle):
    order = mix((5, 0.5), (12, 0.3), (1, 0.2), shuffle=shuffle)
    parts = parts_of(order, range(400))
    for source, size in enumerate((5, 12, 1)):
        rows = [row for part, row in parts if part == source]
        epochs = [rows[start : start + size] for start in range(0, len(rows) - size + 1, size)]
        assert len(epochs) >= 10
        assert all(sorted(epoch) == list(range(size)) for epoch in epochs)


def test_sources_of_one_size_are_shuffled_apart():
    parts = parts_of(mix((20, 1.0), (20, 1.0)), range(40))
    assert [row for part, row in parts if part == 0] != [row for part, row in parts if part == 1]


@pytest.mark.parametrize("sources", [((7, 1.0),), ((5, 0.5), (12, 0.3), (1, 0.2)), ((3, 1.0), (900, 2.0))])
@pytest.mark.parametrize("max_epochs", [1, 3])
def test_the_data_end_just_before_a_source_would_begin_an_epoch_too_many(sources, max_epochs):
    order = mix(*sources)
    end = order.num_issues(max_epochs)
    parts = parts_of(order, range(end + 1))
    counts = [sum(part == source for part, _ in parts[:end]) for source in range(len(sources))]
    assert all(count <= size * max_epochs for count, (size, _) in zip(counts, sources, strict=True))
    last = parts[end][0]
    assert counts[last] == sources[last][0] * max_epochs


def test_the_mix_is_the_same_in_every_process_and_release():
    assert [mix((4, 2), (3, 1), seed=3).row(id) for id in range(12)] == [1, 3, 5, 2, 0, 6, 2, 0, 4, 3, 1, 6]


def test_light_modules_of_the_buffer_import_no_heavy_library():
    code = (
        "import sys, slime_rl.buffer.dataset, slime_rl.buffer.memory, slime_rl.buffer.pacing\n"
        "print({'torch', 'ray', 'megatron', 'sglang', 'redis'} & set(sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"
