"""The gateway's public surface, for benchmarks and for tuning.

How a model's prompts are written and encoded, how texts are embedded, and how files are read.

Anything that is not listed in `__all__` may change at any time.
"""

from __future__ import annotations

from service.gateway.corpus.jobs.job_records import SpooledDocument
from service.gateway.corpus.parsing.parser import DocumentParser
from service.gateway.corpus.parsing.sandbox import FileLimits
from service.gateway.prompts.format import (
    INSTRUCTION,
    from_chat_template,
    load_format,
    without_bos,
)
from service.gateway.prompts.model_folder import ModelFolder
from service.gateway.prompts.prompt_builder import PromptBuilder
from service.gateway.prompts.tokenizer import ServingTokenizer
from service.gateway.retrieval.model_factory import make_embedder

__all__ = [
    "INSTRUCTION",
    "DocumentParser",
    "FileLimits",
    "ModelFolder",
    "PromptBuilder",
    "ServingTokenizer",
    "SpooledDocument",
    "from_chat_template",
    "load_format",
    "make_embedder",
    "without_bos",
]
