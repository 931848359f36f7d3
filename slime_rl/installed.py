"""Reads what the installed engines accept from their source, without importing them: an import costs ten seconds."""

from __future__ import annotations

import ast
import functools
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slime_rl.config import nearest
from slime_rl.errors import ConfigError


@functools.cache
def dataclass_fields(package: str, module: str, name: str) -> frozenset[str]:
    """The annotated fields of class `name` in file `module` of a package that is installed, its own ones only.

    Raises ModuleNotFoundError where the package is missing, and LookupError where the class is.
    """
    source = _find(package, module)
    for node in _classes(source):
        if node.name == name:
            return _annotated(node)
    raise LookupError(f"{source} defines no class {name}")


@functools.cache
def folder_fields(package: str, folder: str) -> frozenset[str]:
    """The annotated fields of every class in the modules of `folder` of a package that is installed.

    Raises ModuleNotFoundError where the package is missing, and LookupError where the folder holds no class.
    """
    sources = sorted(_find(package, folder).glob("*.py"))
    names = frozenset().union(*(_annotated(node) for source in sources for node in _classes(source)))
    if not names:
        raise LookupError(f"{folder} of {package} defines no class with fields")
    return names


def check_arguments(
    path: str, given: Mapping[str, Any], *, known: frozenset[str], ours: frozenset[str], what: str
) -> None:
    """Refuse names that `what` does not know, and names that slime_rl sets itself.

    Raises ConfigError with the dotted path.
    """
    for name, value in given.items():
        if name in ours:
            raise ConfigError(f"{path}.{name}", "is set by slime_rl and cannot be passed through", value)
        if name not in known:
            raise ConfigError(f"{path}.{name}", f"is not {what}{nearest(name, known)}", value)


def _find(package: str, path: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"{package} is not installed: run `python -m slime_rl.install cpu` (or gpu)")
    found = next((p for folder in spec.submodule_search_locations if (p := Path(folder) / path).exists()), None)
    if found is None:
        raise LookupError(f"the installed {package} has no {path}")
    return found


def _classes(source: Path) -> list[ast.ClassDef]:
    return [node for node in ast.parse(source.read_text(encoding="utf-8")).body if isinstance(node, ast.ClassDef)]


def _annotated(node: ast.ClassDef) -> frozenset[str]:
    return frozenset(
        item.target.id for item in node.body if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
    )
