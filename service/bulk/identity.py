"""Which run a command is: the same input for the same model and tiers goes on where it was left."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from service.bulk.corpus_access import calibrated
from service.bulk.records import Run
from service.bulk.sources import normal
from service.gateway.prompts.prompt_builder import PromptBuilder
from service.settings import Settings
from service.shared.model_fingerprint import fingerprint


def run_of(
    settings: Settings,
    model_folder: Path,
    *,
    given: str,
    tenant: str,
    collection: str,
    metadata: dict[str, Any],
) -> Run:
    """The run of a command.

    Args:
        given: `--input`.

    Raises:
        ModelRefused: The model folder cannot be used.
    """
    settings, _ = calibrated(settings, model_folder)
    prompts = PromptBuilder(model_folder, settings)
    found = normal(given)
    parts = {
        "input": found,
        "tenant": tenant,
        "collection": collection,
        "metadata": metadata,
        "model": fingerprint(str(model_folder), settings.quantize),
        "chunking": prompts.chunking().fingerprint,
        "embedder": [settings.embedder, settings.embedder_url, settings.embedder_revision],
        "system": prompts.system,
        "prefix_mode": prompts.prefix_mode,
        "codec": settings.codec,
        "loras": settings.precomputed_loras,
        "redis": _place(settings.redis_url),
        "s3": [settings.s3_endpoint, settings.s3_url],
        "write_tiers": settings.write_tiers,
    }
    digest = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
    return Run(digest[:16], found, tenant, collection, metadata)


def _place(url: str) -> str:
    """A URL without user and password, which may change."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
