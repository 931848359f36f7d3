"""Reads a configuration: a YAML file, dotted overrides, and what is wrong with them in one line."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from slime_rl.config import Config, nearest
from slime_rl.errors import ConfigError


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """The configuration of a YAML file with `dotted.path=value` overrides.

    Raises ConfigError with the dotted path, what was expected and what came.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError("", f"a readable configuration file ({error.strerror})", str(path)) from None
    except ValueError as error:
        raise ConfigError("", f"a configuration file in UTF-8 ({error})", str(path)) from None
    values = parse_yaml(text, source=str(path))
    if not isinstance(values, dict):
        raise ConfigError("", "a mapping of sections", values)
    for override in overrides:
        apply_override(values, override)
    return validate(values)


def validate(values: Mapping[str, Any]) -> Config:
    """Build the configuration from plain values; raises ConfigError for the first fault."""
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        raise _first_fault(error) from None


_WITHOUT_BASE_60 = {
    "tag:yaml.org,2002:int": re.compile(
        r"^(?:[-+]?0b[01_]+|[-+]?0[0-7_]+|[-+]?(?:0|[1-9][0-9_]*)|[-+]?0x[0-9a-fA-F_]+)$"
    ),
    "tag:yaml.org,2002:float": re.compile(
        r"^(?:[-+]?[0-9][0-9_]*\.[0-9_]*(?:[eE][-+][0-9]+)?|\.[0-9][0-9_]*(?:[eE][-+][0-9]+)?"
        r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
    ),
}


class _Loader(yaml.SafeLoader):
    """YAML in which 1e-6 is a number and 1:30 a text, as everybody means it, and a repeated key is an error."""

    def construct_mapping(self, node, deep=False):
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key {key!r} stands twice", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, _WITHOUT_BASE_60.get(tag, pattern)) for tag, pattern in resolvers]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def parse_yaml(text: str, *, source: str) -> Any:
    """The value of a YAML text; raises ConfigError with the line at fault."""
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{source}, line {mark.line + 1}" if mark else source
        raise ConfigError("", f"valid YAML in {where}", getattr(error, "problem", str(error))) from None
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError("", f"valid YAML in {source}", str(error)) from None


def apply_override(values: dict[str, Any], override: str) -> None:
    """Set `dotted.path=value` in the nested mapping `values`; the value is read as YAML."""
    path, equals, text = override.partition("=")
    keys = path.split(".")
    if not equals or not all(keys):
        raise ConfigError("", "an override of the form section.field=value", override)
    target = values
    for key in keys[:-1]:
        if target.get(key) is None:
            target[key] = {}
        target = target[key]
        if not isinstance(target, dict):
            raise ConfigError(path, f"cannot be set: {key} is not a section", override)
    target[keys[-1]] = parse_yaml(text, source=f"override {path}")


def _first_fault(error: ValidationError) -> ConfigError:
    fault = error.errors(include_url=False)[0]
    limits = fault.get("ctx", {})
    path = ".".join(str(part) for part in fault["loc"])
    match fault["type"]:
        case "extra_forbidden":
            parent, name = _section(fault["loc"][:-1]), str(fault["loc"][-1])
            return ConfigError(path, f"is not a known field{nearest(name, parent.model_fields)}", fault["input"])
        case "missing":
            return ConfigError(path, "is required", None)
        case "greater_than_equal":
            return ConfigError(path, f"must be at least {limits['ge']}", fault["input"])
        case "greater_than":
            return ConfigError(path, f"must be above {limits['gt']:g}", fault["input"])
        case "less_than":
            return ConfigError(path, f"must be below {limits['lt']:g}", fault["input"])
        case "finite_number":
            return ConfigError(path, "must be a finite number", fault["input"])
        case "tuple_type":
            return ConfigError(path, "must be a list", fault["input"])
        case "model_type" | "dict_type":
            return ConfigError(path, "must be a mapping", fault["input"])
        case "invalid_key":
            return ConfigError(path, "must have a name that is a text", fault["loc"][-1])
        case "literal_error":
            return ConfigError(path, f"must be {limits['expected']}", fault["input"])
        case _:
            expected = re.sub(r"^Input should be ", "", fault["msg"])
            return ConfigError(path, f"must be {expected}", fault["input"])


def _section(loc: Sequence[str | int]) -> type[BaseModel]:
    """The model class at a location, to name its fields."""
    found: type[BaseModel] = Config
    for part in loc:
        annotation = found.model_fields[str(part)].annotation
        candidates = (annotation, *getattr(annotation, "__args__", ()))
        found = next(c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel))
    return found
