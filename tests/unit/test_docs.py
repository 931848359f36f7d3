from pathlib import Path

from slime_rl import reference
from slime_rl.config_file import load_config

ROOT = Path(__file__).parents[2]


def test_the_configuration_page_is_the_schema():
    written = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    assert written == reference.page(), "run: python -m slime_rl.reference > docs/configuration.md"


def test_every_field_of_the_configuration_says_what_it_means():
    undescribed = [line for line in reference.page().splitlines() if line.startswith("| `") and line.endswith("|  |")]
    assert undescribed == []


def test_the_examples_are_valid_configurations():
    files = sorted((ROOT / "examples").rglob("*.yaml"))
    assert files
    for file in files:
        load_config(file)
