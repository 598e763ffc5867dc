"""Dify's External Knowledge API in terms of ours: conditions, scores, records, errors.

https://docs.dify.ai/en/use-dify/knowledge/external-knowledge-api, as it was in June 2026. Unknown
fields are ignored, because Dify's releases add some.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, Field

from kvstitch.records.answers import RankedBy, SearchResult
from kvstitch.service.errors import InvalidRequest, KvstitchError
from kvstitch.service.gateway.http.problems import sendable
from kvstitch.service.gateway.schemas.fields import LenientModel, Unicode
from kvstitch.service.gateway.schemas.search import SearchRequest

Operator = Literal[
    "contains", "not contains", "start with", "end with", "is", "is not", "in", "not in",
    "empty", "not empty", "=", "≠", ">", "<", "≥", "≤", "before", "after",
]  # fmt: skip
Value = Unicode | int | float | list[Unicode]


class Condition(LenientModel):
    """`name` may be several fields (Dify's earlier documentation): one of them passes."""

    name: Unicode | Annotated[list[Unicode], Field(min_length=1)]
    comparison_operator: Operator
    value: Value | None = None


class MetadataCondition(LenientModel):
    logical_operator: Literal["and", "or"] | None = None
    conditions: Annotated[list[Condition], Field(fail_fast=True)] | None = None


class RetrievalSetting(LenientModel):
    top_k: int = Field(ge=1)
    score_threshold: float = Field(0.0, ge=0, le=1, description="0: none")


class RetrievalRequest(LenientModel):
    """POST /retrieval; `knowledge_id` is the name of a collection."""

    knowledge_id: Annotated[Unicode, Field(min_length=1)]
    query: Unicode
    retrieval_setting: RetrievalSetting
    metadata_condition: MetadataCondition | None = None


class Record(BaseModel):
    content: str
    score: float = Field(description="0 to 1")
    title: str
    metadata: dict[str, Any]


class Records(BaseModel):
    records: list[Record]


class Refusal(BaseModel):
    error_code: int = Field(description="Dify's, or the status")
    error_msg: str


PATH: Final = "/retrieval"
# Dify's codes; for everything else an error's HTTP status is its code.
NO_HEADER, NOT_AUTHORISED, NO_KNOWLEDGE = 1001, 1002, 2001
_COMPARISONS: Final = {
    "is": "eq",
    "is not": "ne",
    "in": "in",
    "not in": "nin",
    "start with": "prefix",
    "=": "eq",
    "≠": "ne",
    ">": "gt",
    "<": "lt",
    "≥": "gte",
    "≤": "lte",
    "before": "lt",
    "after": "gt",
}
_NUMBERS: Final = ("=", "≠", ">", "<", "≥", "≤")
_SUBSTRINGS: Final = ("contains", "not contains", "end with")


def search_request(request: RetrievalRequest) -> SearchRequest:
    """Return the search that Dify asks for. A threshold is one of cosines, so it is by meaning."""
    floor = request.retrieval_setting.score_threshold
    return SearchRequest(
        query=request.query,
        collection=request.knowledge_id,
        top_k=request.retrieval_setting.top_k,
        filter=_filter(request.metadata_condition),
        **({"min_score": floor, "retrieval": "dense"} if floor > 0 else {}),
    )


def record(found: SearchResult, ranked_by: RankedBy) -> Record:
    """Return a passage as Dify reads it."""
    place = {
        "doc_id": found.doc_id,
        "start": found.char_start,
        "end": found.char_end,
        **({} if found.page is None else {"page": found.page}),
        **({} if found.heading is None else {"heading": found.heading}),
    }
    return Record(
        content=found.text or "",
        score=_similarity(found.score, ranked_by),
        title=found.title or found.doc_id,
        metadata={**found.metadata, **{f"kvstitch_{name}": at for name, at in place.items()}},
    )


def error_response(error: KvstitchError, headers: Mapping[str, str]) -> tuple[int, dict[str, Any]]:
    """Return status and body of an error. Dify tells a wrong key by the status 403 alone."""
    status, code = error.status, error.status
    if status == 401:
        scheme, _, key = headers.get("authorization", "").partition(" ")
        sent = scheme.lower() == "bearer" and key.strip()
        status, code = 403, NOT_AUTHORISED if sent else NO_HEADER
    elif status == 403:
        code = NOT_AUTHORISED
    elif status == 404:
        code = NO_KNOWLEDGE
    return status, {"error_code": code, "error_msg": sendable(error.message)}


def _similarity(score: float, ranked_by: RankedBy) -> float:
    """Return a score as a number from 0 to 1, in the same order."""
    if ranked_by == "bm25":
        score /= 1 + score
    return min(1.0, max(0.0, score))


def _filter(sent: MetadataCondition | None) -> dict[str, Any] | None:
    if sent is None or not sent.conditions:
        return None
    tests = [_test(one, f"metadata_condition.conditions[{at}]")
             for at, one in enumerate(sent.conditions)]  # fmt: skip
    return {sent.logical_operator or "and": tests}


def _test(sent: Condition, at: str) -> dict[str, Any]:
    names = [sent.name] if isinstance(sent.name, str) else sent.name
    tests = [_one_test(name, sent, at) for name in names]
    return tests[0] if len(tests) == 1 else {"or": tests}


def _one_test(name: str, sent: Condition, at: str) -> dict[str, Any]:
    operator = sent.comparison_operator
    if operator in _SUBSTRINGS:
        raise InvalidRequest(
            f"{at}.comparison_operator: {operator!r} looks for parts of a text, which filters here "
            "do not: use 'is', 'in' or 'start with'",
            field=f"{at}.comparison_operator",
        )
    if operator in ("empty", "not empty"):
        empty: dict[str, Any] = {"or": [{name: {"exists": False}}, {name: None}, {name: ""}]}
        return empty if operator == "empty" else {"not": empty}
    return {name: {_COMPARISONS[operator]: _value(sent, f"{at}.value")}}


def _value(sent: Condition, at: str) -> Any:
    """Return what a field is compared with."""
    operator, value = sent.comparison_operator, sent.value
    if operator in ("in", "not in"):
        wanted, fits = "a list of texts", isinstance(value, list)
    elif operator in _NUMBERS:
        if isinstance(value, str):  # as Dify sends what was typed into a field
            value = _number(value)
        wanted, fits = "a number", isinstance(value, int | float)
    elif operator == "start with":
        wanted, fits = "a text", isinstance(value, str)
    else:
        wanted, fits = "a text or a number", isinstance(value, str | int | float)
    if not fits:
        raise InvalidRequest(f"{at}: {operator!r} needs {wanted}", field=at)
    return value


def _number(text: str) -> int | float | None:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return None
