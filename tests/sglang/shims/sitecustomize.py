"""Lets SGLang's CUDA-minded imports succeed on a CPU build of torch; only its process has this on the path.

Python runs this file at start. It waits for two imports and steps in right before each:

    torchvision   its wheel is CUDA-built: the two operators it registers fake kernels for are declared first
    sglang.srt    allocates pinned host memory in places, which needs a driver: the wish is dropped
"""

import importlib.abc
import sys
from collections.abc import Callable
from typing import Any

_keep_alive: list[Any] = []  # an operator library lives as long as its Python object


def _declare_torchvision_operators() -> None:
    import torch

    library = torch.library.Library("torchvision", "DEF")
    for operator in ("nms", "qnms"):
        library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _keep_alive.append(library)


def _ignore_pinned_memory() -> None:
    import torch

    if torch.cuda.is_available():
        return

    def unpinned(factory: Callable[..., Any]) -> Callable[..., Any]:
        def make(*args: Any, pin_memory: bool = False, **kwargs: Any) -> Any:
            return factory(*args, **kwargs)

        return make

    for name in ("tensor", "empty", "zeros", "ones", "full", "arange"):
        setattr(torch, name, unpinned(getattr(torch, name)))
    torch.Tensor.pin_memory = lambda self, *args, **kwargs: self


class _Before(importlib.abc.MetaPathFinder):
    """Finds nothing; calls `prepare` once, when a module under `package` is first looked for."""

    def __init__(self, package: str, prepare: Callable[[], None]) -> None:
        self.package, self.prepare, self.is_done = package, prepare, False

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> None:
        if not self.is_done and (fullname + ".").startswith(self.package + "."):
            self.is_done = True
            self.prepare()


sys.meta_path.insert(0, _Before("torchvision", _declare_torchvision_operators))
sys.meta_path.insert(0, _Before("sglang.srt", _ignore_pinned_memory))
