"""The reference page of the configuration, from its schema: `python -m slime_rl.reference > docs/configuration.md`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeGuard, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from slime_rl.config import Config, Mark, mark_of

PREFACE = """# Configuration

One YAML file; `slime-rl train CONFIG section.field=value` sets single fields. Unknown names, wrong types and
combinations that cannot work are refused before anything starts, with exit status 2; `--dry-run` checks everything and
shows what would start. The column `resume` says what `slime-rl resume` makes of a change: `frozen` fields must stay as
the run began, `restart` ones hold from there on, `free` ones change nothing of what is computed. This page is generated
from the schema (`slime_rl/config.py`), where each default stands once.
"""


def page() -> str:
    """The whole page in Markdown."""
    return PREFACE + "".join(section(name, field) for name, field in Config.model_fields.items())


def section(name: str, field: FieldInfo) -> str:
    """One section with a table of its fields, those of sections inside it too."""
    model = _model(field)
    head = "| field | type | default | resume | meaning |\n|---|---|---|---|---|\n"
    lines = [f"\n## {name}\n\n{(model.__doc__ or '').strip()}\n\n{head}"]
    lines += [f"| `{cells[0]}` | {' | '.join(cells[1:])} |\n" for cells in rows(name, model)]
    return "".join(lines)


def rows(prefix: str, model: type[BaseModel]) -> Iterator[tuple[str, str, str, Mark, str]]:
    """Path, type, default, mark and meaning of each field of `model`."""
    for name, field in model.model_fields.items():
        path = f"{prefix}.{name}"
        if _is_section(field.annotation):
            yield from rows(path, field.annotation)
        else:
            yield path, _kind(field.annotation), _default(field), mark_of(field), field.description or ""
            if get_origin(field.annotation) is tuple and _is_section(item := get_args(field.annotation)[0]):
                yield from rows(f"{path}.N", item)


def _model(field: FieldInfo) -> type[BaseModel]:
    candidates = (field.annotation, *getattr(field.annotation, "__args__", ()))
    return next(c for c in candidates if _is_section(c))


def _is_section(annotation: Any) -> TypeGuard[type[BaseModel]]:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _kind(annotation: Any) -> str:
    arguments = [a for a in getattr(annotation, "__args__", ()) if a is not type(None)]
    if arguments and all(isinstance(a, str) for a in arguments):
        return " or ".join(f"`{a}`" for a in arguments)
    if type(None) in getattr(annotation, "__args__", ()):
        return " or ".join(_kind(a) for a in arguments)
    if _is_section(annotation):
        return "mapping"
    base = getattr(annotation, "__origin__", annotation)
    return {dict: "mapping", tuple: "list"}.get(base) or getattr(base, "__name__", str(base))


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    default = field.get_default(call_default_factory=True)
    if isinstance(default, tuple):
        default = list(default)
    return "none" if default is None else f"`{default}`"


if __name__ == "__main__":
    print(page(), end="")
