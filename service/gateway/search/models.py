"""Makes the embedder and the reranker that the settings name."""

from __future__ import annotations

from retriever import Embedder, EndpointEmbedder, EndpointReranker, LocalEmbedder, Reranker
from service.settings import Settings


def make_embedder(settings: Settings) -> Embedder:
    """An embedder behind HTTP if an address is set, else a model in this process; not started."""
    if settings.embedder_url:
        return EndpointEmbedder(
            settings.embedder_url,
            settings.embedder or "default",
            revision=settings.embedder_revision,
            api_key=settings.embedder_key or None,
        )
    return LocalEmbedder(settings.embedder or None, dtype=settings.embedder_dtype)


def make_reranker(settings: Settings) -> Reranker | None:
    """A reranker behind HTTP if an address is set, else None; not started."""
    if not settings.reranker_url:
        return None
    return EndpointReranker(
        settings.reranker_url,
        style=settings.reranker_style,
        model=settings.reranker_model or None,
        api_key=settings.reranker_key or None,
    )
