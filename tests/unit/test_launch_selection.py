"""Which rows a run uses: the same in each process, over-long ones left out and counted."""

import json
import pickle

import pytest

from slime_rl.buffer.dataset import load_selected, read_sources, select
from slime_rl.buffer.order import Source
from slime_rl.config import ColumnsConfig, Config, DataConfig
from slime_rl.errors import DataError
from slime_rl.launch.selection import select_rows, tell


class Letters:
    """Renders one token a letter, as the real Renderer names its errors."""

    def count_tokens(self, prompt, *, field):
        if not prompt.text:
            raise DataError(f"{field}: prompt {prompt.index} renders to nothing")
        return len(prompt.text)


def write(folder, name, *texts, **columns):
    path = folder / name
    path.write_text("\n".join(json.dumps({"prompt": text, "answer": name} | columns) for text in texts))
    return str(path)


@pytest.fixture
def sources(tmp_path):
    easy = {"path": write(tmp_path, "easy", "aa", "bbbb", "cc"), "weight": 3.0}
    hard = {"path": write(tmp_path, "hard", "dddd", "e", "ffffff", "gg"), "rows": "1:"}
    return [easy, hard]


def data_of(sources, **fields):
    return DataConfig.model_validate({"sources": sources} | fields)


def selected(data):
    return select_rows(data, read_sources(data), Letters())


def test_sources_stand_one_after_the_other_numbered_anew_with_their_weights(sources):
    prompts, selection = selected(data_of(sources))
    assert [(p.index, p.text) for p in prompts] == list(enumerate(["aa", "bbbb", "cc", "e", "ffffff", "gg"]))
    assert [p.answer for p in prompts] == ["easy"] * 3 + ["hard"] * 3
    assert [(s.size, s.weight) for s in selection.sources] == [(3, 3.0), (3, 1.0)]
    assert [[p.text for p in part] for part in selection.parts(prompts)] == [
        ["aa", "bbbb", "cc"],
        ["e", "ffffff", "gg"],
    ]


def test_over_long_prompts_are_left_out_counted_and_told(sources, capsys, tmp_path):
    data = data_of(sources, max_prompt_tokens=3, over_long="drop")
    prompts, selection = selected(data)
    assert [(p.index, p.text) for p in prompts] == [(0, "aa"), (1, "cc"), (2, "e"), (3, "gg")]
    assert (selection.left_out, selection.num_left_out) == (((1,), (1,)), 2)
    assert [s.size for s in selection.sources] == [2, 2]
    sections = {"run": {"folder": "r"}, "model": {"path": "m"}, "loop": {"steps": 1}}
    tell(Config.model_validate(sections | {"data": data.model_dump()}), selection)
    assert capsys.readouterr().out == "left out 2 of 6 prompts, longer than 3 tokens\n"


def test_a_prompt_of_just_the_limit_stays(sources):
    assert selected(data_of(sources, max_prompt_tokens=6))[1].num_left_out == 0


def test_over_long_prompts_are_an_error_unless_they_may_be_left_out(sources):
    expected = (
        r"^data.max_prompt_tokens must be at least 6, the longest prompt, got 3: 1 of 3 prompts of "
        r"data.sources.1.path, the first of them prompt 1, are longer \(data.over_long=drop leaves them out\)$"
    )
    with pytest.raises(DataError, match=expected):
        selected(data_of([{**sources[0], "rows": ":1"}, sources[1]], max_prompt_tokens=3))


def test_a_source_of_which_nothing_remains_is_refused(sources):
    with pytest.raises(DataError, match=r"^data.max_prompt_tokens must leave a prompt of data.sources.0.path, got 1"):
        selected(data_of(sources, max_prompt_tokens=1, over_long="drop"))


def test_another_process_has_the_same_prompts(sources):
    data = data_of(sources, max_prompt_tokens=3, over_long="drop")
    prompts, selection = selected(data)
    assert load_selected(data, pickle.loads(pickle.dumps(selection))) == prompts


@pytest.mark.parametrize("columns", [{"level": 2}, {"answer": "other"}])
def test_a_process_that_reads_other_rows_says_so(sources, tmp_path, columns):
    data = data_of(sources)
    _, selection = selected(data)
    write(tmp_path, "hard", "dddd", "e", "ffffff", "gg", **columns)
    with pytest.raises(DataError, match=r"^data.sources.1.path must give the same rows in every process of a run, got"):
        load_selected(data, selection)


def test_a_generator_that_draws_without_a_seed_is_found(tmp_path):
    path = tmp_path / "rows.py"
    path.write_text("import random\ndef fn(): return [dict(prompt=str(random.random()), answer=1)]\n")
    data = DataConfig(path=f"{path}:fn")
    _, selection = select(data, read_sources(data), {})
    with pytest.raises(DataError, match=r"^data.path must give the same rows in every process"):
        load_selected(data, selection)


def test_one_path_is_one_source_and_its_errors_name_it(tmp_path):
    data = DataConfig(path=write(tmp_path, "rows", "aa", ""), columns=ColumnsConfig())
    [record] = select(data, read_sources(data), {})[1].sources
    assert record == Source(2, 1.0, record.digest)
    with pytest.raises(DataError, match=r"^data.path: prompt 1 renders to nothing$"):
        selected(data)


def test_a_column_of_a_source_is_named_where_the_source_names_it(tmp_path, sources):
    sources[1]["columns"] = {"prompt": "question"}
    with pytest.raises(
        DataError, match=r"^data.sources.1.columns.prompt must name a column of .*hard, line 2: no column"
    ):
        read_sources(data_of(sources))
    with pytest.raises(DataError, match=r"^data.columns.answer must name a column of .*easy, line 1: no column 'gold'"):
        read_sources(data_of(sources, columns={"answer": "gold"}))


@pytest.mark.parametrize(
    ("tools", "expected"),
    [
        ([{"name": "f", "default": None}], ({"name": "f"},)),
        ('[{"name": "f", "default": null}]', ({"name": "f", "default": None},)),
        ([], None),
        ("[]", None),
        (None, None),
    ],
)
def test_tools_are_a_list_or_the_text_of_one(tmp_path, tools, expected):
    data = DataConfig(path=write(tmp_path, "rows", "aa", t=tools), columns=ColumnsConfig(tools="t"))
    [prompt] = read_sources(data)["data"]
    assert (prompt.tools, prompt.metadata) == (expected, {})


@pytest.mark.parametrize("tools", ["[", '{"name": "f"}', {"name": "f"}, [1], 3])
def test_what_is_no_list_of_tools_is_named_by_its_place(tmp_path, tools):
    data = DataConfig(path=write(tmp_path, "rows", "aa", t=tools), columns=ColumnsConfig(tools="t"))
    with pytest.raises(
        DataError, match=r"^data.path must hold a list of mappings, .* in column 't', got .*rows, line 1$"
    ):
        read_sources(data)


def test_a_row_without_the_column_of_tools_is_refused(tmp_path):
    data = DataConfig(path=write(tmp_path, "rows", "aa"), columns=ColumnsConfig(tools="t"))
    with pytest.raises(DataError, match=r"^data.columns.tools must name a column of .*rows, line 1: no column 't'"):
        read_sources(data)
