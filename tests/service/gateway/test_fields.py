"""What is told of others: every field of every response is listed here with whom it tells of, and
what a key is answered is the same whatever others have stored."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import httpx

from kvstitch_mcp.tools import TOOLS
from tests.service.gateway.rig import Rig
from tests.service.gateway.test_permissions import Create, member, open_rig

__all__ = ["open_rig"]  # the fixture

# A new field has to be entered here, under what it tells of:
#     own       what the sender has sent, or may read
#     random    nothing
#     service   the machine, the model, settings: nothing of documents or requests
#     load      how busy the service is now
#     sharers   what was asked before of what the sender may read, by whoever reads the same
#     words     how frequent words are in the collection, also where the sender may not read
#     whole     everything, and is shown to keys that read all of the unnamed tenant only
OWN = """
Annotation.type Annotation.url_citation AnswerMessage.annotations AnswerMessage.content
AnswerMessage.refusal AnswerMessage.role AnswerMessage.tool_calls Attribution.by
Attribution.citations Attribution.end Attribution.score Attribution.start AuditEntry.action
AuditEntry.actor AuditEntry.at AuditEntry.details AuditEntry.hash AuditEntry.number
AuditEntry.previous AuditEntry.request_id AuditEntry.route AuditEntry.status AuditEntry.tenant
AuditHead.hash AuditHead.number AuditPage.entries AuditPage.head AuditPage.next
CacheDocument.behind CacheDocument.chunk_id CacheDocument.doc_id CacheDocument.tokens
CacheDocument.stored_bytes CacheReport.documents CacheReport.system CacheReport.tokens
CacheSegment.behind CacheSegment.stored_bytes CacheSegment.tokens ChatChoice.finish_reason
ChatChoice.index ChatChoice.logprobs ChatChoice.message ChatCompletion.choices
ChatCompletion.created ChatCompletion.kvstitch ChatCompletion.object ChatCompletion.usage
ChatLogprobs.content ChatLogprobs.refusal ChunkOut.end ChunkOut.heading ChunkOut.page
ChunkOut.start ChunkOut.tokens Citation.char_end Citation.char_start Citation.chunk_id
Citation.dense_rank Citation.dense_score Citation.doc_id Citation.heading Citation.index
Citation.page Citation.quote_end Citation.quote_start Citation.rerank_score Citation.support
Citation.text Citation.title Citation.url Citation.used CitedAnswer.answer CitedAnswer.citations
CitedAnswer.finish_reason CitedAnswer.warnings CollectionList.collections
CollectionOut.chunks CollectionOut.collection CollectionOut.documents CollectionOut.tokens
Completion.choices Completion.created Completion.kvstitch Completion.object Completion.usage
Details.adapter Details.attributions Details.cache Details.citations Details.eviction
Details.finish_reason Details.fusion Details.retrieval Details.seed Details.warnings
DocumentForecast.behind DocumentForecast.chunk_id DocumentForecast.doc_id
DocumentForecast.stored_bytes DocumentForecast.tokens DocumentList.documents
DocumentList.next_cursor DocumentOut.created DocumentOut.doc_id DocumentOut.marks
DocumentOut.metadata DocumentOut.num_chars DocumentOut.num_chunks DocumentOut.num_tokens
DocumentOut.pinned DocumentOut.readers DocumentOut.revision DocumentOut.text DocumentOut.title
DocumentOut.updated DocumentOut.warnings DocumentOut.writers DocumentPart.chars
DocumentPart.doc_id DocumentPart.metadata DocumentPart.next_offset DocumentPart.offset
DocumentPart.text DocumentPart.title DocumentText.chunks DocumentText.doc_id DocumentText.text
DocumentText.title DocumentText.warnings DocumentWarningsOut.doc_id DocumentWarningsOut.warnings
Documents.document Documents.documents Documents.next_cursor Embedding.embedding
Embedding.index Embedding.object EmbeddingsResponse.data EmbeddingsResponse.object
EmbeddingsResponse.usage EmbeddingsUsage.prompt_tokens EmbeddingsUsage.total_tokens
ErrorObject.code ErrorObject.message ErrorObject.param ErrorObject.type ErrorOut.error
Explanation.adapter Explanation.citations Explanation.documents Explanation.eviction
Explanation.explain Explanation.flops Explanation.full_prefill_flops Explanation.fusion
Explanation.max_tokens Explanation.prompt_tokens Explanation.retrieval Explanation.system
Explanation.warnings FoundPassages.passages FoundPassages.ranked_by FoundPassages.warnings
GenerateResponse.adapter GenerateResponse.attributions GenerateResponse.cache
GenerateResponse.citations GenerateResponse.eviction GenerateResponse.finish_reason
GenerateResponse.fusion GenerateResponse.logprobs GenerateResponse.retrieval
GenerateResponse.seed GenerateResponse.text GenerateResponse.usage GenerateResponse.warnings
JobErrorOut.doc_id JobErrorOut.message JobList.jobs JobList.next_cursor JobOut.changes
JobOut.chunks JobOut.created JobOut.errors JobOut.eta_high_s JobOut.eta_low_s JobOut.eta_s
JobOut.progress JobOut.state JobOut.steps JobOut.updated JobOut.warned JobOut.warnings
JobProgress.cancelled JobProgress.done JobProgress.failed JobProgress.total JobStep.doc_id
JobStep.done JobStep.eta_s JobStep.total LikelyToken.bytes LikelyToken.logprob LikelyToken.token
LikelyToken.token_id ListedDocument.chars ListedDocument.doc_id ListedDocument.metadata
ListedDocument.title MarkOut.kind MarkOut.label MarkOut.start OutputCall.arguments
OutputCall.name OutputCall.status OutputCall.type OutputMessage.content OutputMessage.role
OutputMessage.status OutputMessage.type OutputText.annotations OutputText.logprobs
OutputText.text OutputText.type OutputTokensDetails.reasoning_tokens Passage.doc_id
Passage.end Passage.heading Passage.index Passage.metadata Passage.page Passage.start Passage.text
Passage.title Passage.url Passage.used Problem.code Problem.detail
Problem.field Problem.instance Problem.status Problem.title Problem.type ReceiptOut.chunks
ReceiptOut.collection ReceiptOut.completed ReceiptOut.created ReceiptOut.doc_ids
ReceiptOut.documents ReceiptOut.kv ReceiptOut.owed_chunks ReceiptOut.state Record.content
Record.metadata Record.title Records.records Refusal.error_code Refusal.error_msg
RerankResponse.results RerankResponse.usage RerankResult.document RerankResult.index
RerankResult.relevance_score RerankUsage.total_tokens RerankedText.text
ResponseObject.background ResponseObject.completed_at ResponseObject.created_at
ResponseObject.error ResponseObject.frequency_penalty ResponseObject.incomplete_details
ResponseObject.instructions ResponseObject.kvstitch ResponseObject.max_output_tokens
ResponseObject.max_tool_calls ResponseObject.metadata ResponseObject.object
ResponseObject.output ResponseObject.parallel_tool_calls ResponseObject.presence_penalty
ResponseObject.previous_response_id ResponseObject.prompt_cache_key ResponseObject.reasoning
ResponseObject.safety_identifier ResponseObject.service_tier ResponseObject.status
ResponseObject.store ResponseObject.temperature ResponseObject.text ResponseObject.tool_choice
ResponseObject.tools ResponseObject.top_logprobs ResponseObject.top_p ResponseObject.truncation
ResponseObject.usage ResponsesUsage.input_tokens ResponsesUsage.input_tokens_details
ResponsesUsage.output_tokens ResponsesUsage.output_tokens_details ResponsesUsage.total_tokens
RetrievalNote.condense RetrievalNote.joined RetrievalNote.query SearchResponse.collection
SearchResponse.ranked_by SearchResponse.results SearchResponse.retrieval SearchResponse.warnings
SearchResult.char_end SearchResult.char_start SearchResult.chunk_id SearchResult.dense_rank
SearchResult.dense_score SearchResult.doc_id SearchResult.heading SearchResult.index
SearchResult.metadata SearchResult.page SearchResult.rerank_score SearchResult.text
SearchResult.title SegmentForecastOut.behind SegmentForecastOut.stored_bytes
SegmentForecastOut.tokens SegmentTokens.runs SegmentTokens.scores SegmentTokens.starts
SegmentTokens.text SourceDocument.collection SourceDocument.doc_id SourceDocument.sha256
TextChoice.finish_reason TextChoice.index TextChoice.logprobs TextChoice.text
TextLogprobs.text_offset TextLogprobs.token_logprobs TextLogprobs.tokens
TextLogprobs.top_logprobs TokenLogprob.bytes TokenLogprob.logprob TokenLogprob.text_offset
TokenLogprob.token TokenLogprob.token_id TokenLogprob.top_logprobs TokenReport.documents
TokenReport.question TokenReport.system TokenRunOut.tokens ToolCallOut.function
ToolCallOut.type UrlCitation.end_index UrlCitation.start_index UrlCitation.title UrlCitation.url
Usage.completion_tokens Usage.prompt_tokens Usage.prompt_tokens_details Usage.total_tokens
WarningOut.code WarningOut.count WarningOut.message WarningOut.places corpus corpus.chunks
corpus.documents corpus.tokens
"""
RANDOM = """
ChatCompletion.id Completion.id Explanation.id GenerateResponse.id JobOut.job_id OutputCall.call_id
OutputCall.id OutputMessage.id ReceiptOut.receipt_id RerankResponse.id ResponseObject.id
ToolCallOut.id
"""
SERVICE = """
ChatCompletion.model Completion.model EmbeddingsResponse.model Explanation.measured
Explanation.model GenerateResponse.model ModelList.data ModelList.object ModelOut.created
ModelOut.details ModelOut.fusion ModelOut.id ModelOut.object ModelOut.owned_by ModelOut.parent
NotReady.reason NotReady.status ReceiptOut.unreached RerankResponse.model ResponseObject.model
TokenReport.kv_heads TokenReport.layers adapters model model.codec model.device model.dtype
model.family model.fingerprint model.head_dim model.id model.kv_bytes_per_token model.kv_heads
model.layers model.max_context model.name model.stored_bytes_per_token prompt
prompt.chunk_tokens prompt.max_tokens prompt.passage_order prompt.prefix_mode prompt.top_k reason
state version worker worker.pid worker.pool_tokens
"""
LOAD = """
CacheDocument.load_s CacheDocument.plan CacheDocument.problems CacheDocument.why
CacheSegment.load_s CacheSegment.plan CacheSegment.problems CacheSegment.why Details.stages
Details.timing DocumentForecast.action DocumentForecast.load_s Explanation.expected_ttft_s
Explanation.full_prefill_ttft_s Explanation.stages GenerateResponse.stages
GenerateResponse.timing JobOut.phase JobOut.waiting JobStep.step SearchResponse.stages
SegmentForecastOut.action SegmentForecastOut.load_s Timing.total_s Timing.tpot_s Timing.ttft_s
CacheReport.gate GateNote.state GateNote.used GateNote.why
"""
SHARERS = """
CacheDocument.bytes CacheDocument.computed CacheDocument.reused CacheDocument.rows_recomputed
CacheDocument.tier CacheReport.coverage CacheReport.flops CacheReport.full_prefill_flops
CacheReport.exact_from CacheReport.history_tokens CacheReport.kept_per_layer
CacheReport.kept_ratio CacheReport.ratio
CacheReport.recomputed_ratio CacheReport.recomputed_tokens CacheReport.reused_from
CacheReport.reused_tokens CacheReport.rows_per_layer CacheSegment.bytes CacheSegment.computed
CacheSegment.reused CacheSegment.rows_recomputed CacheSegment.tier DocumentForecast.computed
DocumentForecast.load_bytes DocumentForecast.reused DocumentForecast.tier
Explanation.history_tokens Explanation.recomputed_tokens Explanation.reused_from
Explanation.reused_tokens InputTokensDetails.cached_tokens PromptTokensDetails.cached_tokens
InputTokensDetails.cache_write_tokens
SegmentForecastOut.computed SegmentForecastOut.load_bytes SegmentForecastOut.reused
SegmentForecastOut.tier TokenRunOut.computed_layers TokenRunOut.entries TokenRunOut.source
"""
# docs/security.md says so under what is not promised.
WORDS = """
Citation.score Citation.sparse_rank Citation.sparse_score Details.found Details.relevance
Explanation.found Explanation.relevance GenerateResponse.found GenerateResponse.relevance
Passage.score Record.score SearchResponse.found SearchResponse.relevance SearchResult.score
SearchResult.sparse_rank SearchResult.sparse_score
"""
WHOLE = """
Gate.methods Gate.sample GateMethod.agreement GateMethod.checks GateMethod.for_s
GateMethod.fusion GateMethod.mean_kl GateMethod.recovery_agreement GateMethod.recovery_checks
GateMethod.recovery_kl GateMethod.recovery_needed GateMethod.state GateMethod.trips
GateMethod.used GateMethod.why advice corpus.complete corpus.jobs gate in_flight ingest
ingest.disk_free_bytes ingest.kv_bytes_per_token ingest.tokens_per_s tiers tiers.memory
tiers.memory.entries worker.pool_free worker.running worker.waiting workers workers.address
workers.backlog_s workers.device workers.draining workers.memory workers.memory.entries
workers.name workers.pid workers.pool_free workers.reason workers.running workers.version
workers.waiting
"""
LISTS = (OWN, RANDOM, SERVICE, LOAD, SHARERS, WORDS, WHOLE)
HEADERS = {
    "content-length", "content-type", "content-security-policy", "date", "referrer-policy",
    "retry-after", "server", "vary", "x-content-type-options", "x-request-id", "location",
    "cache-control", "server-timing", "www-authenticate",
}  # fmt: skip


def fields(described: dict[str, Any], found: Any, schemas: dict[str, Any]) -> None:
    """Collect what a description of responses refers to."""
    if isinstance(found, dict):
        name = str(found.get("$ref", "")).rpartition("/")[2]
        if name and name not in schemas:
            schemas[name] = described[name]
            fields(described, described[name], schemas)
        for value in found.values():
            fields(described, value, schemas)
    elif isinstance(found, list):
        for value in found:
            fields(described, value, schemas)


def keys(found: Any, path: str = "") -> Iterator[str]:
    for key, value in found.items() if isinstance(found, dict) else ():
        yield path + key
        for one in value if isinstance(value, list) else [value]:
            yield from keys(one, f"{path}{key}.")


def test_every_field_of_every_response_is_listed_with_whom_it_tells_of(
    open_rig: Callable[..., Rig],
) -> None:
    rig = open_rig()
    described = rig.http.get("/openapi.json").json()
    schemas: dict[str, Any] = {}
    for operations in described["paths"].values():
        for operation in operations.values():
            fields(described["components"]["schemas"], operation["responses"], schemas)
    for tool in TOOLS.values():
        schema = tool.result.model_json_schema()
        schemas |= {**schema.get("$defs", {}), schema["title"]: schema}
    there = {
        f"{name}.{key}" for name, each in schemas.items() for key in each.get("properties", ())
    }
    there |= set(keys(rig.http.get("/status").json()))
    listed = [field for one in LISTS for field in one.split()]
    assert len(listed) == len(set(listed)) > 500
    assert there - set(listed) == set(), "say whom these tell of"
    assert set(listed) - there == set(), "these are there no more"


def test_numbers_of_the_whole_service_are_for_operators(
    open_rig: Callable[..., Rig], create: Create
) -> None:
    rig = open_rig()
    for groups, more in ((["hr"], ()), ([], ()), (None, ("--tenant", "red"))):
        who = member(rig, lambda *given, more=more: create(*given, *more), groups).http
        for method, path in (("GET", "/metrics"), ("GET", "/admin/gate"),
                             ("POST", "/admin/gate/reset")):  # fmt: skip
            reply = who.request(method, path, json={} if method == "POST" else None)
            assert reply.status_code == 403 and "whole service" in reply.text, path
        told = who.get("/status").json()
        for name in (each for each in WHOLE.split() if "." not in each):
            assert not told[name], name
        assert not told["corpus"]["jobs"] and told["corpus"]["complete"] is None
        who.close()
    assert rig.http.get("/metrics").status_code == rig.http.get("/admin/gate").status_code == 200


VARIES = re.compile(
    r'"(id|stages|timing|expected_ttft_s|full_prefill_ttft_s|load_s|created|created_at|'
    r'completed_at|updated|receipt_id|phase|waiting|eta_s|eta_low_s|eta_high_s|completed)": '
    r'("[^"]*"|\{[^}]*\}|[^,}]*)'
)


def answers(who: httpx.Client, jobs: list[str]) -> Iterator[tuple[str, str]]:
    """What somebody is told, without what is random or a time of now."""
    ask = {"question": "fox?", "include_text": True, "retrieval": "dense", "top_k": 9}
    calls: list[tuple[str, str, Any]] = [
        ("GET", "/admin/documents", None), ("GET", "/admin/documents?limit=1", None),
        ("GET", "/admin/documents/mine/text", None), ("GET", "/admin/collections", None),
        ("GET", "/admin/sources/desk", None), ("GET", "/status", None),
        ("GET", "/admin/jobs?limit=1", None), *(("GET", f"/admin/jobs/{j}", None) for j in jobs),
        ("POST", "/v1/search", {"query": "fox", "retrieval": "dense", "top_k": 9}),
        ("POST", "/v1/rag/generate", ask), ("POST", "/v1/rag/generate", {**ask, "explain": True}),
        ("POST", "/admin/deletions", {"doc_ids": ["nothing"]}),
        ("GET", "/metrics", None), ("GET", "/admin/documents/others", None),
    ]  # fmt: skip
    for method, path, body in calls:
        reply = who.request(method, path, json=body)
        assert set(reply.headers) <= HEADERS, set(reply.headers) - HEADERS
        told = json.dumps(reply.json(), sort_keys=True)
        for number, job_id in enumerate(jobs):
            path, told = path.replace(job_id, f"job{number}"), told.replace(job_id, f"job{number}")
        yield f"{method} {path}", VARIES.sub(r'"\1"', told)


def test_what_others_store_changes_nothing_that_a_key_is_told(
    open_rig: Callable[..., Rig], create: Create
) -> None:
    """Others: another tenant, and another group. They store documents before, between and after
    the sender's, whose jobs therefore have other numbers, and chunks other places."""
    rig = open_rig(prefix_mode="system")
    hr, red = member(rig, create, ["hr"]).http, member(rig, create, None).http
    other = member(rig, lambda *given: create(*given, "--tenant", "red"), None).http
    told: list[dict[str, str]] = []
    busy: list[int] = []

    def stored(who: httpx.Client, *names: str, **more: Any) -> str:
        documents = [{"doc_id": name, "text": f"fox {name} forest", **more} for name in names]
        body = {"documents": documents}
        reply = who.post("/admin/precompute", json=body, params={"source": "desk"})
        job_id = str(reply.json()["job_id"])
        while who.get(f"/admin/jobs/{job_id}").json()["state"] in ("queued", "running"):
            pass
        return job_id

    for others in (False, True):
        jobs = []
        for number in range(3):
            if others:
                busy.append(number)
                stored(other, "mine", "others", f"more{number}")
                stored(red, "others", f"more{number}", readers=["legal"])
            jobs.append(stored(hr, "mine", f"mine{number}", readers=["hr"]))
        told.append(dict(answers(hr, jobs)))
        assert hr.delete("/admin/collections/default").json()["documents"] == 4
    assert len(busy) == 3 and told[0].keys() == told[1].keys()
    for name, text in told[0].items():
        assert told[1][name] == text, name
    for who in (hr, red, other):
        who.close()
