"""Data sets of every format, in real files."""

import datetime
import json
import subprocess
import sys

import pytest

from slime_rl.buffer import generated
from slime_rl.buffer.dataset import load_prompts
from slime_rl.config import ColumnsConfig, parse_rows
from slime_rl.errors import DataError

ROWS = [{"prompt": f"p{i}", "answer": i, "level": i % 3} for i in range(2500)]


def load(path, rows=None, columns=None):
    return load_prompts(str(path), columns or ColumnsConfig(), field="data.path", rows=rows)


def seen(prompts):
    return [(p.index, p.text, p.answer, dict(p.metadata)) for p in prompts]


def write_jsonl(folder, rows):
    path = folder / "rows.jsonl"
    path.write_text("\n\n".join(map(json.dumps, rows)))
    return path


def write_parquet(folder, rows):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "rows.parquet", row_group_size=700)
    return folder / "rows.parquet"


def write_folder(folder, rows):
    datasets = pytest.importorskip("datasets")
    datasets.Dataset.from_list(rows).save_to_disk(folder / "saved")
    return folder / "saved"


def write_function(folder, rows, body="yield from ROWS"):
    path = folder / "rows.py"
    path.write_text(f"import itertools, time\nROWS = {rows!r}\ndef fn():\n    {body}\n")
    return f"{path}:fn"


WRITERS = [write_jsonl, write_parquet, write_folder, write_function]


@pytest.mark.parametrize("rows", [None, "3:7", ":2", "2490:", "1:2400:600", "1023:1026", "1:2100:1023"])
@pytest.mark.parametrize("write", WRITERS)
def test_every_format_gives_the_same_rows_and_slices(tmp_path, write, rows):
    chosen = ROWS[parse_rows(rows)] if rows else ROWS
    expected = [(i, r["prompt"], str(r["answer"]), {"level": r["level"]}) for i, r in enumerate(chosen)]
    assert seen(load(write(tmp_path, ROWS), rows)) == expected


@pytest.mark.parametrize("write", WRITERS)
def test_a_bad_row_is_named_by_its_place_in_the_whole_data_set(tmp_path, write):
    path = write(tmp_path, [{"prompt": "p", "answer": "a"}, {"prompt": "p", "answer": None}])
    place = "line 3" if write is write_jsonl else "row 1"
    with pytest.raises(DataError, match=rf"^data.path must hold .* in column 'answer', got None in {path}, {place}$"):
        load(path, "1:")


@pytest.mark.parametrize("write", WRITERS)
def test_a_slice_beyond_the_end_is_refused(tmp_path, write):
    with pytest.raises(DataError, match=r"with at least one row, got '.*', which has none among '9:12'$"):
        load(write(tmp_path, ROWS[:3]), "9:12")


@pytest.mark.parametrize("write", [write_parquet, write_folder])
def test_keys_that_other_messages_have_are_absent_from_a_message_again(tmp_path, write):
    user, tool = {"role": "user", "content": "hi"}, {"role": "tool", "content": None, "name": "f"}
    [prompt] = load(write(tmp_path, [{"prompt": [user, tool], "answer": "a"}]))
    assert prompt.messages == (user, tool)


def test_times_become_text_and_bytes_in_a_prompt_are_refused(tmp_path):
    moment = datetime.datetime(2020, 1, 2, 3)
    [prompt] = load(write_parquet(tmp_path, [{"prompt": "p", "answer": "a", "at": moment, "raw": b"\x00"}]))
    assert prompt.metadata == {"at": "2020-01-02T03:00:00", "raw": b"\x00"}
    with pytest.raises(
        DataError, match=r"^data.path must hold text, numbers, .* in column 'prompt', got b'x' in .*row 0"
    ):
        load(write_parquet(tmp_path, [{"prompt": b"x", "answer": "a"}]))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("rows.parquet", "must name a readable Parquet file, got '.*rows.parquet'"),
        ("rows.py:fn", "must name a function of .*rows.py, got 'fn'; did you mean 'fun'?"),
        ("none.py:fn", "must name a readable Python file, got '.*none.py'"),
        ("saved", "must name a readable saved data set, got '.*saved'"),
        ("splits", r"must name one split of a saved data set, got '.*splits', which holds \['test', 'train'\]"),
        ("empty", "must name a file or a folder that datasets.Dataset.save_to_disk wrote, got '.*empty'"),
    ],
)
def test_what_cannot_be_read_is_named_in_one_line(tmp_path, name, message):
    (tmp_path / "rows.parquet").write_text("no parquet")
    (tmp_path / "rows.py").write_text("def fun(): return []")
    for folder, file in {"saved": "state.json", "splits": "dataset_dict.json", "empty": "x"}.items():
        (tmp_path / folder).mkdir()
        (tmp_path / folder / file).write_text("{}")
    for split in ("test", "train"):
        (tmp_path / "splits" / split).mkdir()
    with pytest.raises(DataError, match=f"^data.path {message}") as caught:
        load(tmp_path / name)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            "yield from (1 / 0 for _ in range(3))",
            "must name a function that gives rows, got ZeroDivisionError: division",
        ),
        ("yield 3", "must give mappings of columns, got int in .*rows.py:fn, row 0"),
        ("yield dict(prompt='p', answer='a', x=object())", "must hold plain data in column 'x', got object in .*row 0"),
        ("return 3", "must name a function that gives rows, got int from"),
    ],
)
def test_a_function_that_fails_is_named(tmp_path, body, message):
    with pytest.raises(DataError, match=f"^data.path {message}"):
        load(write_function(tmp_path, [], body))


ENDLESS = "yield from (dict(prompt=str(i), answer=i) for i in itertools.count())"


def test_an_endless_generator_is_read_to_the_end_of_its_slice(tmp_path):
    assert [p.text for p in load(write_function(tmp_path, [], ENDLESS), "5:20:7")] == ["5", "12", "19"]


def test_an_endless_generator_without_an_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(generated, "MAX_ROWS", 100)
    with pytest.raises(DataError, match=r"must end within 100 rows or be bounded by data\.rows, got '.*rows.py:fn'$"):
        load(write_function(tmp_path, [], ENDLESS))
    assert len(load(write_function(tmp_path, ROWS[:100]))) == 100


def test_a_slow_generator_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(generated, "MAX_SECONDS", 0.0)
    with pytest.raises(DataError, match=r"must end within 0 s, got '.*', which had given 0 rows"):
        load(write_function(tmp_path, [], ENDLESS), ":9")


def test_a_task_of_reasoning_gym_gives_the_same_rows_in_every_slice():
    pytest.importorskip("reasoning_gym")
    whole, part = load("reasoning-gym:chain_sum", ":6"), load("reasoning-gym:chain_sum", "4:6")
    assert [(p.text, p.answer) for p in part] == [(p.text, p.answer) for p in whole[4:]]
    assert len({p.text for p in whole}) == 6
    assert whole[0].metadata["metadata"]["source_dataset"] == "chain_sum"
    with pytest.raises(DataError, match=r"got 'chain_sun'; did you mean 'chain_sum'\?$"):
        load("reasoning-gym:chain_sun", ":6")
    with pytest.raises(DataError, match=r"^data.rows must have an end for a task of reasoning-gym, got none"):
        load("reasoning-gym:chain_sum", "4:")


@pytest.mark.parametrize(
    ("library", "name"),
    [("pyarrow", "rows.parquet"), ("datasets", "saved"), ("reasoning_gym", "reasoning-gym:chain_sum")],
)
def test_a_missing_library_is_named_with_what_to_install(tmp_path, monkeypatch, library, name):
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "state.json").write_text("{}")
    monkeypatch.setitem(sys.modules, library, None)
    path = name if ":" in name else tmp_path / name
    with pytest.raises(
        DataError, match=rf"^data.path names .*, which needs {library}: pip install 'slime-rl\[data\]'$"
    ):
        load(path, ":2")


def test_reading_jsonl_imports_no_optional_library(tmp_path):
    code = (
        "import sys\nfrom slime_rl.buffer.dataset import load_prompts\nfrom slime_rl.config import ColumnsConfig\n"
        f"load_prompts({str(write_jsonl(tmp_path, ROWS[:2]))!r}, ColumnsConfig(), field='data.path')\n"
        "print({'pyarrow', 'datasets', 'reasoning_gym'} & set(sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"
