"""Imports transformers' model files without compilers and libraries that serving never uses.

They import torch._dynamo for its decorators, DTensor for weights that transformers itself shards,
and SciPy for the loss of object detection: more than a quarter of the processor time until a worker
is ready, and 57 MB that stay. Nothing here is compiled or trained, and weights are sharded by
`service.worker.parallel`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any
from unittest.mock import patch

import transformers.utils
from transformers.utils import import_utils

_DYNAMO = "torch._dynamo"
_MASKS = "torch._dynamo._trace_wrapped_higher_order_op"
_UNUSED = ("is_scipy_available", "is_torch_distributed_available", "is_torch_flex_attn_available")


@contextmanager
def lean_import() -> Iterator[None]:
    """What is imported meanwhile finds that torch._dynamo decorates nothing, and that the rest is
    not installed. Afterwards all of it can be imported as always.

    Does without where a name is missing or torch._dynamo is there already: it only saves time.
    """
    with ExitStack() as stack:
        for module in (transformers.utils, import_utils):
            for name in _UNUSED:
                if hasattr(module, name):
                    stack.enter_context(patch.object(module, name, _no))
        if _DYNAMO not in sys.modules:
            for name, module in _stand_ins().items():
                sys.modules[name] = module
                stack.callback(sys.modules.pop, name)
        yield


def _no() -> bool:
    return False


def _stand_ins() -> dict[str, ModuleType]:
    dynamo, masks = ModuleType(_DYNAMO), ModuleType(_MASKS)
    vars(dynamo).update(__path__=[], __getattr__=lambda name: _undecorated)
    vars(masks).update(TransformGetItemToIndex=_WhenNeeded)
    return {_DYNAMO: dynamo, _MASKS: masks}


def _undecorated(function: Any = None, *_args: Any, **_options: Any) -> Any:
    """As a decorator, with arguments or without, leaves a function as it is."""
    return function if callable(function) else _undecorated


class _WhenNeeded:
    """Stands for transformers.masking_utils.TransformGetItemToIndex until one is made."""

    def __new__(cls) -> Any:
        from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex

        return TransformGetItemToIndex()
