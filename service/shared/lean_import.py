"""What a process that loads a model need not import: a third of what loading one costs."""

import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any
from unittest.mock import patch

_DYNAMO = "torch._dynamo"
_MASKS = "torch._dynamo._trace_wrapped_higher_order_op"
_UNUSED = ("is_scipy_available", "is_torch_distributed_available", "is_torch_flex_attn_available")
# Of two that overlap, the later would put back what the earlier has put in place.
_ONE_AT_A_TIME = threading.Lock()


@contextmanager
def lean_import() -> Iterator[None]:
    """Import transformers' model files without compilers and libraries that serving never uses."""
    import torch  # noqa: F401  whole, before parts of it seem to be there
    import transformers.utils.import_utils

    with _ONE_AT_A_TIME, ExitStack() as stack:
        for module in (transformers.utils, transformers.utils.import_utils):
            for name in _UNUSED:
                if hasattr(module, name):
                    stack.enter_context(patch.object(module, name, lambda: False))
        if _DYNAMO not in sys.modules:
            for name, module in _stand_ins().items():
                sys.modules[name] = module
                stack.callback(sys.modules.pop, name)
        yield


def _stand_ins() -> dict[str, ModuleType]:
    dynamo, masks = ModuleType(_DYNAMO), ModuleType(_MASKS)
    vars(dynamo).update(__path__=[], __getattr__=lambda name: _undecorated)
    vars(masks).update(TransformGetItemToIndex=_WhenNeeded)
    return {_DYNAMO: dynamo, _MASKS: masks}


def _undecorated(function: Any = None, *_args: Any, **_options: Any) -> Any:
    """Leave a function as it is, as a decorator with arguments or without."""
    return function if callable(function) else _undecorated


class _WhenNeeded:
    """Stands for transformers.masking_utils.TransformGetItemToIndex until one is made."""

    def __new__(cls) -> Any:
        from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex

        return TransformGetItemToIndex()
