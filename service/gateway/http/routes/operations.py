"""Health, status, metrics, and /admin/gate: which fusion methods are trusted."""

import asyncio
from dataclasses import asdict
from typing import Any, Literal

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel

from kvstitch.service import __version__
from kvstitch.service.errors import UnknownMethod
from kvstitch.service.gateway.answers.response import method_fields
from kvstitch.service.gateway.auth.access import Principal
from kvstitch.service.gateway.composition import Gateway
from kvstitch.service.gateway.fleet.member import WorkerState
from kvstitch.service.gateway.http.dependencies import (
    Administering,
    GatewayDep,
    JsonRoute,
    ReadingMetrics,
    note,
    of_all,
)
from kvstitch.service.gateway.http.problems import RETRY_AFTER_S
from kvstitch.service.gateway.prometheus import OWN_TIER, WorkerCollector
from kvstitch.service.gateway.schemas.admin import Gate, GateMethod, GateReset
from kvstitch.service.messages.replies import GateStates, Stats
from kvstitch.service.messages.reports import GATE_STATES

router = APIRouter(tags=["operations"], route_class=JsonRoute)


class NotReady(BaseModel):
    status: Literal["not ready"]
    reason: str


@router.get("/admin/gate")
async def gate(principal: Administering, gateway: GatewayDep) -> Gate:
    """How methods agree with full prefill, and what is used instead of those that do not."""
    of_all(principal)
    return _gate(gateway, await gateway.worker.gate())


@router.post("/admin/gate/reset")
async def reset(
    principal: Administering, gateway: GatewayDep, body: GateReset, request: Request
) -> Gate:
    """Trust a method again, or all of them; what was seen of it so far counts no more."""
    of_all(principal)
    note(request, method=body.method)
    known = sorted(info.name for info in gateway.worker.require().fusion)
    if body.method is not None and body.method not in known:
        raise UnknownMethod(
            f"method {body.method!r} is no fusion method; known methods: {', '.join(known)}",
            field="method",
        )
    return _gate(gateway, await gateway.worker.gate(reset=body.method or ""))


def _gate(gateway: Gateway, reply: GateStates) -> Gate:
    methods = []
    for state in reply.states:
        as_sent = {"fusion": method_fields(state.fusion), "used": method_fields(state.used)}
        methods.append(GateMethod(**{**vars(state), **as_sent}))
    return Gate(sample=gateway.settings.gate_sample if reply.on else 0.0, methods=methods)


@router.get("/health", include_in_schema=False)
@router.get("/health/live")
async def live() -> dict[str, str]:
    """This process answers; nothing else is looked at. /health is another name for it."""
    return {"status": "ok"}


@router.get("/health/ready", responses={503: {"model": NotReady}})
async def ready(gateway: GatewayDep) -> JSONResponse:
    """200 while requests are served, else 503 with the reason. `degraded`: questions are answered,
    but nothing can be stored."""
    if (reason := gateway.not_ready()) is None:
        if (full := await asyncio.to_thread(gateway.disk.reason)) is not None:
            return JSONResponse({"status": "degraded", "reason": full})
        return JSONResponse({"status": "ready"})
    headers = {"Retry-After": str(round(RETRY_AFTER_S))}
    return JSONResponse({"status": "not ready", "reason": reason}, 503, headers)


@router.get("/status")
async def status(gateway: GatewayDep, principal: ReadingMetrics) -> dict[str, Any]:
    """What a person wants to know at a glance; of documents and load what the sender may see."""
    return {"version": __version__, **await _status(gateway, principal)}


@router.get(
    "/metrics",
    response_class=PlainTextResponse,
    responses={200: {"content": {CONTENT_TYPE_LATEST: {"schema": {"type": "string"}}}}},
)
async def metrics(gateway: GatewayDep, principal: ReadingMetrics) -> Response:
    of_all(principal)
    return Response(gateway.metrics.render(), media_type=CONTENT_TYPE_LATEST)


async def _status(gateway: Gateway, principal: Principal) -> dict[str, Any]:
    """Return state, model, corpus, load and tiers, None for what is not known yet, or of others."""
    whole = not principal.limited
    ready, stats = gateway.worker.ready, gateway.worker.stats if whole else None
    reason = gateway.not_ready()
    fmt = gateway.prompts.format
    corpus: dict[str, Any] | None = None
    advice: list[str] = []
    if gateway.retriever.started:
        if whole:
            advice = await gateway.retriever.run(gateway.retriever.advice.sentences)
        counted = gateway.retriever.catalog.collections
        found = await gateway.retriever.run(counted, principal.tenant, principal.view)
        counts = await gateway.retriever.run(gateway.retriever.catalog.counts)
        sizes = ("documents", "chunks", "tokens")
        corpus = {
            **{n: sum(getattr(one, n) for one in ([counts] if whole else found)) for n in sizes},
            "jobs": await gateway.corpus.jobs.states() if whole else {},
            "complete": gateway.corpus.ingestion.complete if whole else None,
        }
    return {
        "state": "ready" if reason is None else "not ready",
        "reason": reason or await asyncio.to_thread(gateway.disk.reason),
        "advice": advice,
        "model": None if ready is None else {**asdict(ready.model), "id": gateway.prompts.model},
        "adapters": [] if ready is None else [asdict(each) for each in ready.adapters],
        "prompt": {
            "chunk_tokens": fmt.chunk_tokens,
            "top_k": fmt.top_k,
            "passage_order": fmt.passage_order,
            "max_tokens": fmt.max_tokens,
            "prefix_mode": fmt.prefix_mode,
        },
        "corpus": corpus,
        "ingest": None if ready is None or not whole else gateway.corpus.pace(ready.model),
        "in_flight": gateway.limiter.in_flight if whole else None,
        "worker": {
            "pid": gateway.worker_pid,
            "pool_tokens": None if ready is None else ready.pool_tokens,
            "pool_free": None if stats is None else stats.pool_free,
            "running": None if stats is None else stats.running,
            "waiting": None if stats is None else stats.waiting,
        },
        "workers": [
            _worker_report(state, number, gateway.metrics.worker)
            for number, state in enumerate(gateway.worker_states() if whole else ())
        ],
        "gate": None if stats is None else _gate_states(stats),
        "tiers": gateway.metrics.worker.tiers() if whole else {},
    }


def _gate_states(stats: Stats) -> dict[str, str]:
    """Return how far the correctness gate trusts the fusion methods used since the start.

    Empty where the gate is off.
    """
    return {
        labels["method"]: GATE_STATES[int(value)]
        for name, labels, value in stats.values
        if name == "kvstitch_gate_state"
    }


def _worker_report(state: WorkerState, number: int, reported: WorkerCollector) -> dict[str, Any]:
    """Return a worker's state with what it has reported of itself, None for what is not known."""
    # In metrics one that runs by itself has its address, and one of our own its number.
    address = state.address or ""
    worker = address.partition("://")[2] or str(number)
    info = next(iter(reported.reported(worker, "kvstitch_worker_info")), None)
    device, version = info or (None, None)
    backlog = reported.reported(worker, "kvstitch_backlog_seconds").get(())
    return {
        **asdict(state),
        "name": worker,
        "device": device,
        "version": version,
        "backlog_s": backlog,
        "memory": _memory(worker, reported),
    }


def _memory(worker: str, reported: WorkerCollector) -> dict[str, float] | None:
    """Return what the worker's memory tier holds."""
    values = {
        name: reported.reported(worker, f"kvstitch_tier_{name}").get((OWN_TIER,))
        for name in ("entries", "used_bytes", "capacity_bytes")
    }
    known = {name: value for name, value in values.items() if value is not None}
    return known or None
