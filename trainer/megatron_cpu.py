"""Lets the unmodified megatron-core from PyPI run on a machine without CUDA.

megatron-core writes its device out: `device="cuda"`, `torch.cuda.current_device()`, `x.cuda()`,
`param.type() == "torch.cuda.FloatTensor"`. An import hook rewrites exactly those expressions in the syntax tree of
megatron's and mbridge's modules as they are imported:

    torch.cuda                      ->  the stand-in of slime_rl.trainer.cpu_device
    "cuda" (a whole literal)        ->  "cpu"
    "torch.cuda.FloatTensor"        ->  "torch.FloatTensor"
    x.cuda(...), x.pin_memory(...)  ->  x.cpu()
    pin_memory=True                 ->  pin_memory=False
    from torch.cuda import a        ->  a = stand-in.a

torch itself and every other package stay untouched, and line numbers stay right. Where CUDA is available the modules
are imported as they are. Importing this module loads no torch: the device is looked up when a megatron module runs.
"""

from __future__ import annotations

import ast
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from pathlib import Path
from types import CodeType, ModuleType

from slime_rl.trainer.cpu_fixups import FIXUPS

PACKAGES = ("megatron.", "mbridge")
STAND_IN = "__cpu_device__"
_TENSOR_TYPES = {f"torch.cuda.{kind}Tensor": f"torch.{kind}Tensor" for kind in ("Float", "Half", "BFloat16", "Double")}


class _OnCpu(ast.NodeTransformer):
    """Rewrites what names a CUDA device."""

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        if node.attr == "cuda" and isinstance(node.value, ast.Name) and node.value.id == "torch":
            return ast.copy_location(ast.Name(STAND_IN, node.ctx), node)
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if node.value == "cuda":
            return ast.copy_location(ast.Constant("cpu"), node)
        if isinstance(node.value, str) and node.value in _TENSOR_TYPES:
            return ast.copy_location(ast.Constant(_TENSOR_TYPES[node.value]), node)
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.func, ast.Attribute) and node.func.attr in ("cuda", "pin_memory"):
            node.func.attr, node.args, node.keywords = "cpu", [], []
        for keyword in node.keywords:
            if keyword.arg == "pin_memory":
                keyword.value = ast.copy_location(ast.Constant(False), keyword.value)
        return node

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST | list[ast.AST]:
        if node.module != "torch.cuda":
            return node
        return [
            ast.copy_location(
                ast.Assign(
                    [ast.Name(alias.asname or alias.name, ast.Store())],
                    ast.Attribute(ast.Name(STAND_IN, ast.Load()), alias.name, ast.Load()),
                ),
                node,
            )
            for alias in node.names
        ]


def on_cpu(source: bytes | str, path: str) -> CodeType:
    """Compile a megatron module's source with every CUDA device in it rewritten."""
    tree = _OnCpu().visit(ast.parse(source, path))
    return compile(ast.fix_missing_locations(tree), path, "exec", dont_inherit=True)


def without_cuda() -> bool:
    """Whether megatron has to be rewritten on this machine."""
    import torch  # this module is imported by light processes, which never get here

    return not torch.cuda.is_available()


class _Loader(importlib.machinery.SourceFileLoader):
    """Runs a module rewritten, and its fix-up after it, where there is no CUDA."""

    def get_code(self, fullname: str) -> CodeType | None:
        if not without_cuda():
            return super().get_code(fullname)
        path = self.get_filename(fullname)  # never the .pyc: it holds the code as it was
        return on_cpu(self.get_data(path), path)

    def exec_module(self, module: ModuleType) -> None:
        if not without_cuda():
            super().exec_module(module)
            return
        from slime_rl.trainer.cpu_device import CPU_DEVICE  # loads torch

        module.__dict__[STAND_IN] = CPU_DEVICE
        super().exec_module(module)
        if fixup := FIXUPS.get(module.__name__):
            fixup(module)


class _Finder(importlib.abc.MetaPathFinder):
    """Gives megatron's and mbridge's modules the loader above."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not fullname.startswith(PACKAGES):
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.origin and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            source = Path(spec.origin).read_bytes()
            if fullname in FIXUPS or b"cuda" in source or b"pin_memory" in source:
                spec.loader = _Loader(fullname, spec.origin)
        return spec


def install() -> None:
    """Put the hook in place, once; it must come before the first import of megatron."""
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    if "megatron.core" in sys.modules and without_cuda():
        raise RuntimeError("slime_rl.trainer must be imported before megatron.core")
    sys.meta_path.insert(0, _Finder())
