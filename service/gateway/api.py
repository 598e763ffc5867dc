"""The gateway's public surface: how a model's prompts are written and encoded, for benchmarks.

Anything that is not listed in `__all__` may change at any time.
"""

from __future__ import annotations

from service.gateway.prompts.format import (
    INSTRUCTION,
    from_chat_template,
    load_format,
    without_bos,
)
from service.gateway.prompts.model_folder import ModelFolder
from service.gateway.prompts.model_folder import resolve as resolve_model
from service.gateway.prompts.tokenizer import ServingTokenizer

__all__ = [
    "INSTRUCTION",
    "ModelFolder",
    "ServingTokenizer",
    "from_chat_template",
    "load_format",
    "resolve_model",
    "without_bos",
]
