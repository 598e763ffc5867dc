"""How methods stand at the worker's correctness gate, and trusting them again. Knows no HTTP."""

from __future__ import annotations

from dataclasses import asdict

from service.errors import UnknownMethod
from service.gateway.answers import response
from service.gateway.schemas.gate import Gate, GateMethod
from service.gateway.worker_client.protocol import Worker
from service.messages import GateState, GateStates


async def states(worker: Worker, sample: float) -> Gate:
    """Raises WorkerUnavailable."""
    return _gate(sample, await worker.gate())


async def reset(worker: Worker, sample: float, method: str | None) -> Gate:
    """As if it had never been checked. Raises UnknownMethod, WorkerUnavailable."""
    known = sorted(info.name for info in worker.require().fusion)
    if method is not None and method not in known:
        raise UnknownMethod(
            f"method {method!r} is no fusion method; known methods: {', '.join(known)}",
            field="method",
        )
    return _gate(sample, await worker.gate(reset=method or ""))


def _gate(sample: float, found: GateStates) -> Gate:
    return Gate(
        sample=sample if found.on else 0.0, methods=[_method(state) for state in found.states]
    )


def _method(state: GateState) -> GateMethod:
    methods = {"fusion": response.method(state.fusion), "used": response.method(state.used)}
    return GateMethod(**{**asdict(state), **methods})
