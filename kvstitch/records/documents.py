"""Documents, jobs and deletions. Docstrings and descriptions are part of /openapi.json."""

from typing import Any, Literal

from kvstitch.records.base import Result, record, told

JobState = Literal["queued", "running", "succeeded", "failed", "cancelled", "dead"]
JobPhase = Literal["reading", "embedding", "precomputing"]
OPEN_STATES = ("queued", "running")


@record
class JobProgress:
    """`done` documents are stored with their KV, `failed` and `cancelled` ones are not."""

    done: int
    failed: int
    cancelled: int
    total: int


@record
class JobFault:
    doc_id: str
    message: str


@record
class JobStep:
    """A document that takes long: `done` of its `total` chunks are embedded, if that is known."""

    doc_id: str
    step: Literal["waiting", "reading", "embedding"]
    done: int
    total: int
    eta_s: float | None = told("seconds until it is embedded")


@record
class DocumentWarning:
    """Something of a file that is not in the document's text, or that may be wrong there."""

    code: str = told("what kind of thing, for programs")
    message: str
    places: list[str] = told("pages, slides or sheets; at most 200 of them")
    count: int


@record
class WarnedDocument:
    doc_id: str
    warnings: list[DocumentWarning]


@record
class Job(Result):
    job_id: str
    state: JobState
    progress: JobProgress
    chunks: int
    changes: dict[str, int]
    errors: list[JobFault]
    steps: list[JobStep] = told(
        "documents that take long, until they are indexed",
        json_schema_extra={"default": []},
        default_factory=list,
    )
    warnings: list[WarnedDocument] = told(
        "of documents that are stored, but not all of them", absent=[]
    )
    warned: int = told("how many documents have warnings", absent=0)
    waiting: str | None = told("why it does not go on at the moment", default=None)
    eta_s: float | None = told(
        "seconds until it ends, probably; null if that is not known", default=None
    )
    eta_low_s: float | None = told("at least so many", default=None)
    eta_high_s: float | None = told("at most so many", default=None)
    phase: JobPhase | None = told(
        "what is being done; null if it has not begun, or ended", default=None
    )
    created: float
    updated: float

    @property
    def ended(self) -> bool:
        return self.state not in OPEN_STATES


@record
class JobList:
    """Newest first; pass `next_cursor` as `cursor` for the next page."""

    jobs: list[Job]
    next_cursor: str | None


@record
class DocumentMark:
    """Where a page, slide, sheet or heading begins: its first character in the text."""

    start: int
    kind: Literal["page", "slide", "sheet", "heading"]
    label: str = told("number of the page or slide, name of the sheet, the heading")


# `text`, `marks` and `warnings` are those of a single document; in listings they are None.
@record
class Document(Result):
    doc_id: str
    title: str
    metadata: dict[str, Any]
    revision: str
    created: float
    updated: float
    num_chars: int
    num_chunks: int
    num_tokens: int
    pinned: bool
    readers: list[str] = told("groups that may read it; none: all of the tenant", absent=[])
    writers: list[str] = told(
        "groups that may change it, `*`: whoever may read it; none: keys of all groups", absent=[]
    )
    text: str | None = None
    marks: list[DocumentMark] | None = told("of a single document, as is its text", default=None)
    warnings: list[DocumentWarning] | None = told("of a single document", default=None)


@record
class DocumentList:
    documents: list[Document]
    next_cursor: str | None


@record
class StoredChunk:
    """A chunk: which characters of the text it is, and what it belongs to."""

    start: int
    end: int
    tokens: int = told("with the title, as it is prefilled")
    page: str | None = told(absent=None)
    heading: str | None = told(absent=None)


@record
class DocumentText(Result):
    """What is stored of a document, to look at when an answer is wrong."""

    doc_id: str
    title: str
    text: str
    chunks: list[StoredChunk]
    warnings: list[DocumentWarning]


@record
class SourceDocument:
    """A document that came from a source last; `sha256` of what was sent."""

    collection: str
    doc_id: str
    sha256: str


# A collection that has documents; `tokens`: of their chunks.
@record
class Collection(Result):
    collection: str
    documents: int
    chunks: int
    tokens: int


@record
class CollectionList:
    collections: list[Collection]


@record
class Receipt(Result):
    """What a deletion removed. Text, vectors and search entries are gone when it is answered.

    `kv` counts deleted copies of KV per tier. `owed_chunks` are those whose KV may still be stored,
    because the worker or the `unreached` tiers are away: it is deleted as soon as they are back,
    and `state` is then `completed`.
    """

    receipt_id: str
    state: Literal["completed", "owed"]
    collection: str
    doc_ids: list[str]
    documents: int
    chunks: int
    kv: dict[str, int]
    owed_chunks: int
    unreached: list[str]
    created: float
    completed: float | None
