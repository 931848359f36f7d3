import json

import pytest

from slime_rl.buffer.dataset import load_prompts
from slime_rl.config import ColumnsConfig
from slime_rl.errors import DataError

COLUMNS = ColumnsConfig()


def write(tmp_path, *lines):
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return str(path)


def load(path, columns=COLUMNS):
    return load_prompts(path, columns, field="data.path")


def test_text_answer_and_metadata_come_from_the_columns(tmp_path):
    prompts = load(
        write(tmp_path, {"prompt": "1+1?", "answer": 2, "level": "easy"}, "", {"prompt": "x", "answer": "y"})
    )
    assert [(p.index, p.text, p.answer, p.metadata) for p in prompts] == [
        (0, "1+1?", "2", {"level": "easy"}),
        (1, "x", "y", {}),
    ]


def test_a_list_of_messages_is_a_chat_prompt(tmp_path):
    messages = [{"role": "user", "content": "hello"}]
    [prompt] = load(write(tmp_path, {"prompt": messages, "answer": ""}))
    assert (prompt.text, prompt.messages) == (None, tuple(messages))


def test_columns_may_have_other_names(tmp_path):
    path = write(tmp_path, {"question": "q", "gold": "g", "prompt": "kept"})
    [prompt] = load(path, ColumnsConfig(prompt="question", answer="gold"))
    assert (prompt.text, prompt.answer, prompt.metadata) == ("q", "g", {"prompt": "kept"})


def test_a_line_separator_inside_a_text_is_no_end_of_line(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"prompt": "a\u2028b", "answer": ""}\r\n', newline="")
    assert load(str(path))[0].text == "a\u2028b"


def test_a_missing_file_names_the_field(tmp_path):
    with pytest.raises(
        DataError, match=r"^evaluation.path must name a readable JSONL file, got '.*none.jsonl' \(No such"
    ):
        load_prompts(str(tmp_path / "none.jsonl"), COLUMNS, field="evaluation.path")


def test_a_folder_and_a_binary_file_are_refused(tmp_path):
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="Is a directory"):
        load(str(tmp_path))
    with pytest.raises(DataError, match="in UTF-8"):
        load(str(tmp_path / "binary"))


@pytest.mark.parametrize("text", ["", "\n \n"])
def test_an_empty_file_is_refused(tmp_path, text):
    with pytest.raises(DataError, match=r"^data.path must name a file with at least one row"):
        load(write(tmp_path, text))


GOOD = {"prompt": "p", "answer": "a"}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ('{"prompt": ', r"must hold a JSON object a line, got invalid JSON \(Expecting value.*\)"),
        ("[" * 100_000, r"must hold a JSON object a line, got invalid JSON \(maximum recursion.*\)"),
        ("[1]", "must hold a JSON object a line, got list"),
        ({"prompt": 3, "answer": "a"}, "must hold a text or a list of messages in column 'prompt', got 3"),
        ({"prompt": [], "answer": "a"}, r"must hold a text or a list of messages in column 'prompt', got \[\]"),
        (
            {"prompt": [{"role": "user"}], "answer": "a"},
            "must hold messages with role and content in column 'prompt', got {'role': 'user'}",
        ),
        ({"prompt": "p", "answer": None}, "must hold a text or a number in column 'answer', got None"),
        ({"prompt": "p", "answer": True}, "must hold a text or a number in column 'answer', got True"),
        (
            {"prompt": "\ud83d", "answer": "a"},
            "must hold whole characters in column 'prompt', got half of a surrogate pair",
        ),
        (
            {"prompt": [{"role": "user", "content": ["\ude00"]}], "answer": "a"},
            "must hold whole characters in column 'prompt', got half of a surrogate pair",
        ),
        (
            {"prompt": "p", "answer": "\ud83d"},
            "must hold whole characters in column 'answer', got half of a surrogate pair",
        ),
    ],
)
@pytest.mark.parametrize("field", ["data.path", "evaluation.path"])
def test_a_bad_row_names_field_column_file_and_line(tmp_path, row, message, field):
    path = write(tmp_path, GOOD, "", row)
    with pytest.raises(DataError, match=rf"^{field} {message} in {path}, line 3$") as caught:
        load_prompts(path, COLUMNS, field=field)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("row", "role", "found"),
    [
        (
            {"promt": "p", "answer": "a"},
            "prompt",
            r"no column 'prompt'; did you mean 'promt'\?; the row has \['answer', 'promt'\]",
        ),
        ({"prompt": "p"}, "answer", r"no column 'answer'; the row has \['prompt'\]"),
    ],
)
def test_a_missing_column_names_the_field_that_names_it(tmp_path, row, role, found):
    path = write(tmp_path, GOOD, "", row)
    with pytest.raises(DataError, match=rf"^data\.columns\.{role} must name a column of {path}, line 3: {found}$"):
        load(path)
    expected = rf"^evaluation\.path must hold the column that data\.columns\.{role} names, in {path}, line 3: {found}$"
    with pytest.raises(DataError, match=expected):
        load_prompts(path, COLUMNS, field="evaluation.path")


def test_a_whole_surrogate_pair_and_any_metadata_are_fine(tmp_path):
    path = write(tmp_path, r'{"prompt": "\ud83d\ude00", "answer": "a", "half": "\ud83d", "big": 123456789012345678901}')
    [prompt] = load(path)
    assert (prompt.text, prompt.metadata) == ("\U0001f600", {"half": "\ud83d", "big": 123456789012345678901})
