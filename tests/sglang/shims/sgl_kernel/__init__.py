"""Takes the place of SGLang's CUDA kernels at import time.

SGLang looks up a handful of kernel names while it is imported. With a dense model, `--device cpu` and
`--attention-backend torch_native` it never calls one; should it ever, the call says so instead of computing nonsense.
"""

from collections.abc import Callable
from typing import NoReturn

__version__ = "0.4.10"


def __getattr__(name: str) -> Callable[..., NoReturn]:
    if name.startswith("__"):
        raise AttributeError(name)

    def absent(*args: object, **kwargs: object) -> NoReturn:
        raise NotImplementedError(f"sgl_kernel.{name} needs CUDA; this is a stand-in for imports only")

    return absent
