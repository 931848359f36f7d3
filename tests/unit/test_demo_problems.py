import json

from slime_rl.demo.problems import NUM_HELD_OUT, read_problems, split_problems, write_data


def test_no_held_out_problem_occurs_in_warm_up_or_training_in_either_order(tmp_path):
    split = split_problems(seed=0)
    write_data(tmp_path / "data", split, seed=0)
    held_out = read_problems(tmp_path / "data" / "heldout.jsonl")
    assert len(held_out) == NUM_HELD_OUT
    for name in ("train", "warm_up", "validation"):
        others = read_problems(tmp_path / "data" / f"{name}.jsonl")
        assert others
        assert not held_out & others
    assert split.overlap == 0
    assert len(held_out | read_problems(tmp_path / "data" / "train.jsonl")) == 5050


def test_the_overlap_counts_a_problem_in_the_other_order(tmp_path):
    write_data(tmp_path / "data", split_problems(seed=0), seed=0)
    row = json.loads((tmp_path / "data" / "heldout.jsonl").read_text().splitlines()[0])
    left, right = row["prompt"].rstrip("=").split("+")
    leaked = tmp_path / "leaked.jsonl"
    leaked.write_text(json.dumps({"prompt": f"{right}+{left}="}) + "\n")
    assert len(read_problems(leaked) & read_problems(tmp_path / "data" / "heldout.jsonl")) == 1


def test_answers_are_written_units_first(tmp_path):
    write_data(tmp_path / "data", split_problems(seed=1), seed=1)
    for line in (tmp_path / "data" / "train.jsonl").read_text().splitlines()[:200]:
        row = json.loads(line)
        left, right = row["prompt"].rstrip("=").split("+")
        assert int(row["answer"][::-1]) == int(left) + int(right)
        assert (len(left), len(right), len(row["answer"])) == (2, 2, 3)
