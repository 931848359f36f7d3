"""Becomes the real torchvision, beside a torch that was built without CUDA.

The torchvision wheel is a CUDA build, so its `_C.so` cannot load on a CPU and the schemas of its operators stay
undefined; the module then fails as it registers their fake kernels. Defining the two schemas first is all it takes.
"""

import importlib.util
import os
import sys

import torch

_operators = torch.library.Library("torchvision", "FRAGMENT")
for _name in ("nms", "qnms"):
    _operators.define(_name + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

_here = os.path.dirname(os.path.abspath(__file__))
for _folder in sys.path:
    _real = os.path.join(_folder or ".", "torchvision", "__init__.py")
    if os.path.exists(_real) and os.path.dirname(os.path.abspath(_real)) != _here:
        break
else:
    raise ModuleNotFoundError("torchvision is not installed: run `python -m slime_rl.install cpu`")

_spec = importlib.util.spec_from_file_location(__name__, _real, submodule_search_locations=[os.path.dirname(_real)])
__spec__ = _spec
__path__ = [os.path.dirname(_real)]
__file__ = _real
with open(_real, encoding="utf-8") as _source:
    exec(compile(_source.read(), _real, "exec"), globals())
