import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("slime_rl", "rollout", "trainer", "buffer", "rewards")
DEVICE = re.compile(r"\bcuda\b|\bnccl\b|\bgloo\b|nvidia|is_available\(", re.IGNORECASE)


def code_of(path: Path) -> str:
    """The source without its comments and docstrings' lines that only speak of devices."""
    text = re.sub(r'"""[\s\S]*?"""', "", path.read_text(encoding="utf-8"))
    return re.sub(r"#.*", "", text)


def test_what_depends_on_the_device_stands_in_the_listed_modules_only():
    listed = set(re.findall(r"^\| `([\w/.]+)`", (ROOT / "docs" / "paths.md").read_text(), re.MULTILINE))
    found = set()
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*.py"):
            place = path.relative_to(ROOT).as_posix()
            linked = place.startswith(tuple(f"slime_rl/{name}/" for name in FOLDERS[1:]))
            if not linked and not place.startswith("slime_rl/install/") and DEVICE.search(code_of(path)):
                found.add(place)
    listed.discard("slime_rl/install/")
    assert found == listed
