"""What a request searches: a collection of its tenant, a filter on metadata, a text.

The retriever's errors are put in the service's terms here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kvstitch.retriever import Scope, SearchMode, parse_filter
from kvstitch.retriever.errors import (
    DocumentKept,
    EmbedderError,
    InvalidDocument,
    InvalidQuery,
    RetrieverError,
    Unreachable,
)
from kvstitch.retriever.filters import MATCH_ALL, Filter
from kvstitch.retriever.scope import DEFAULT_SCOPE, joined_readers, joined_writers
from kvstitch.service.errors import (
    DatabaseUnavailable,
    InternalError,
    InvalidRequest,
    KvstitchError,
    NotAWriter,
)
from kvstitch.service.gateway.auth.access import Principal
from kvstitch.service.gateway.schemas.fields import composed
from kvstitch.service.gateway.schemas.generate import SearchChoices
from kvstitch.service.settings import Settings


def document_scope(principal: Principal, collection: str | None) -> Scope:
    """Return the scope of a collection as the sender of a request sees it: whatever is found, read
    or changed for them goes through it. None means the default collection."""
    try:
        name = DEFAULT_SCOPE.collection if collection is None else collection
        return Scope(principal.tenant, name, principal.view, principal.pen, principal.key_id)
    except InvalidQuery as error:
        raise service_error(error, field="collection") from error


def readers_of(groups: Sequence[str]) -> str:
    """Return the readers of a document that is sent, as they are stored."""
    try:
        return joined_readers(groups)
    except InvalidDocument as error:
        raise service_error(error, field="readers") from error


def writers_of(groups: Sequence[str] | None) -> str | None:
    """Return the writers of a document that is sent, likewise; None: none are named."""
    try:
        return None if groups is None else joined_writers(groups)
    except InvalidDocument as error:
        raise service_error(error, field="writers") from error


def metadata_filter(conditions: Mapping[str, Any] | None) -> Filter:
    """Parse a request's `filter`; None passes every document. The field of an InvalidRequest is
    the path of the condition."""
    try:
        return parse_filter(conditions or {})
    except InvalidQuery as error:
        # The retriever's message begins with the path: "filter.year.near: …".
        raise service_error(error, field=str(error).partition(":")[0]) from error


def service_error(error: RetrieverError, *, field: str | None = None) -> KvstitchError:
    """Return the service's error for one of the retriever."""
    if isinstance(error, DocumentKept):
        return NotAWriter(str(error), field=field)
    if isinstance(error, InvalidDocument | InvalidQuery):
        return InvalidRequest(str(error), field=field)
    if isinstance(error, Unreachable):
        return DatabaseUnavailable(str(error), retry_after_s=2.0)
    failed = "embedder" if isinstance(error, EmbedderError) else "document index"
    return InternalError(f"the {failed} failed: {error}")


_MEANINGS: Final = {"dense": "cosines", "hybrid": "sums of shares"}
_HIGHEST_SCORES: Final = {"dense": 1.0, "hybrid": 1.0}  # BM25 has none


@dataclass(frozen=True)
class SearchQuery:
    """What is searched for, and where; `joined` is the question with earlier ones."""

    text: str
    top_k: int
    scope: Scope = DEFAULT_SCOPE
    doc_ids: tuple[str, ...] | None = None
    where: Filter = MATCH_ALL
    mode: SearchMode = "dense"
    rerank: bool = False
    min_score: float | None = None
    joined: str | None = None
    neighbours: int = 0  # pieces before and behind each passage


def search_query(
    choices: SearchChoices, text: str, *, principal: Principal, top_k: int, settings: Settings
) -> SearchQuery:
    """Make every check that takes no time; `top_k` is for requests that do not say."""
    limit = settings.max_top_k
    wanted = top_k if choices.top_k is None else choices.top_k
    if wanted > limit:
        raise InvalidRequest(f"top_k must be at most {limit}, not {wanted}", field="top_k")
    if choices.documents is not None and not choices.documents:
        raise InvalidRequest(
            "documents is empty: name documents, or leave it out to search all of them",
            field="documents",
        )
    mode = choices.retrieval or settings.retrieval
    if not choices.rerank:
        _check_floor(choices.min_score, mode)
    return SearchQuery(
        text=text,
        top_k=wanted,
        scope=document_scope(principal, choices.collection),
        doc_ids=None if choices.documents is None else tuple(map(composed, choices.documents)),
        where=metadata_filter(choices.filter),
        mode=mode,
        rerank=choices.rerank,
        min_score=choices.min_score,
        neighbours=choices.neighbours,
    )


def _check_floor(floor: float | None, mode: SearchMode) -> None:
    """Raise InvalidRequest if no passage can have such a score."""
    highest = _HIGHEST_SCORES.get(mode)
    if floor is None or highest is None or floor <= highest:
        return
    remedy = "lower it"
    if mode == "hybrid":
        remedy += ", or choose retrieval dense, whose scores are cosines"
    raise InvalidRequest(
        f"min_score must be at most {highest:.4g} with retrieval {mode}, whose scores are "
        f"{_MEANINGS[mode]}, not {floor:g}: {remedy}",
        field="min_score",
    )
