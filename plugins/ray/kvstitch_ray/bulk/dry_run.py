"""Counts what a bulk would do: documents, chunks, tokens, and bytes that each tier would take."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvstitch.kvstore import ChunkSpec, chunk_file_bytes
from kvstitch.service.errors import KvstitchError, ModelRefused
from kvstitch.service.gateway.documents.jobs.job_records import IngestDocument
from kvstitch.service.gateway.documents.parsing.parser import DocumentParser, FileLimits
from kvstitch.service.gateway.prompts.prompt_builder import PromptBuilder
from kvstitch.service.prompt import CHUNK_PREFIX_MODES
from kvstitch.service.settings import Settings
from kvstitch.service.settings.calibration import calibrated
from kvstitch_ray.bulk.ranges import DocumentReader, file_ranges, line_ranges
from kvstitch_ray.bulk.records import MAX_ERRORS, Range
from kvstitch_ray.bulk.sources import Source


@dataclass
class Estimate:
    """What a bulk would take."""

    documents: int = 0
    failed: int = 0
    chunks: int = 0
    tokens: int = 0
    tier_bytes: int = 0
    errors: list[tuple[str, str]] = field(default_factory=list)


def estimate(
    source: Source,
    settings: Settings,
    model_folder: Path,
    *,
    collection: str,
    range_documents: int,
) -> Estimate:
    """Read and chunk the whole input, with the tokenizer alone. Blocks."""
    settings, _ = calibrated(settings, model_folder)
    prompts = PromptBuilder(model_folder, settings)
    spec = spec_of(model_folder, settings)
    reader = DocumentReader(source, settings, tenant="", collection=collection, metadata={})
    parser = DocumentParser(FileLimits.of(settings))
    chunking = prompts.chunking()
    found = Estimate()
    sizes: dict[int, int] = {}  # bytes of a chunk by its tokens
    for part in _ranges(source, range_documents):
        for item in reader.read(part):
            try:
                if not isinstance(item, IngestDocument):
                    _fail(found, *item)
                    continue
                document = asyncio.run(parser.document(item))
            except KvstitchError as error:
                assert isinstance(item, IngestDocument)
                _fail(found, item.doc_id, error.message)
                continue
            found.documents += 1
            for span in chunking.split(document.text, document.title):
                found.chunks += 1
                found.tokens += span.tokens
                if span.tokens not in sizes:
                    sizes[span.tokens] = chunk_file_bytes(spec(span.tokens))
                found.tier_bytes += sizes[span.tokens]
    found.tier_bytes *= 1 + len(settings.precomputed_loras)
    if prompts.prefix_mode in CHUNK_PREFIX_MODES:
        found.tier_bytes *= 2  # with a prefix and without
    return found


def spec_of(model_folder: Path, settings: Settings) -> Any:
    """Return a function that makes the shape of a chunk's KV from its tokens."""
    config = json.loads((model_folder / "config.json").read_text(encoding="utf-8"))
    config = {**config, **config.get("text_config", {})}
    try:
        heads = int(config["num_attention_heads"])
        layers = int(config["num_hidden_layers"])
        kv_heads = int(config.get("num_key_value_heads") or heads)
        head_dim = int(config.get("head_dim") or int(config["hidden_size"]) // heads)
    except (KeyError, TypeError, ValueError) as error:
        raise ModelRefused(f"{model_folder}/config.json lacks a size: {error}") from error
    dtype = "bfloat16" if settings.dtype == "auto" else settings.dtype

    def spec(tokens: int) -> ChunkSpec:
        return ChunkSpec("0" * 64, settings.codec, dtype, layers, kv_heads, head_dim, tokens)

    return spec


def _ranges(source: Source, range_documents: int) -> Iterator[Range]:
    for file in source.files():
        if file.lines:
            yield from line_ranges(source, file.name, range_documents)
        else:
            yield from file_ranges([file], range_documents)


def _fail(found: Estimate, doc_id: str, message: str) -> None:
    found.failed += 1
    if len(found.errors) < MAX_ERRORS:
        found.errors.append((doc_id, message))
