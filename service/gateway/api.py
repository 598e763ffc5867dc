"""The gateway's public surface, for benchmarks and for tuning.

How a model's prompts are written and encoded, how texts are embedded, how files are read, what is
searched for a follow-up question, and which passages support an answer.

Anything that is not listed in `__all__` may change at any time.
"""

from __future__ import annotations

from service.gateway.answers.attributor import attribute
from service.gateway.answers.question_rewriting import joined_query
from service.gateway.answers.support import SupportScorer, sentences
from service.gateway.documents.jobs.job_records import IngestDocument
from service.gateway.documents.parsing.parser import DocumentParser, FileLimits
from service.gateway.prompts.chunk_prefixes import prefix_rule
from service.gateway.prompts.model_folder import (
    INSTRUCTION,
    ModelFolder,
    from_chat_template,
    load_format,
    without_bos,
)
from service.gateway.prompts.prompt_builder import PromptBuilder
from service.gateway.prompts.tokenizer import ServingTokenizer
from service.gateway.search.async_retriever import AsyncRetriever, make_embedder
from service.gateway.search.passage_search import PassageSearch
from service.gateway.search.search_query import SearchQuery

__all__ = [
    "INSTRUCTION",
    "AsyncRetriever",
    "DocumentParser",
    "FileLimits",
    "IngestDocument",
    "ModelFolder",
    "PassageSearch",
    "PromptBuilder",
    "SearchQuery",
    "ServingTokenizer",
    "SupportScorer",
    "attribute",
    "from_chat_template",
    "joined_query",
    "load_format",
    "make_embedder",
    "prefix_rule",
    "sentences",
    "without_bos",
]
