"""Reads and resets the worker's correctness gate, for administrators."""

from __future__ import annotations

from service.errors import UnknownMethod
from service.gateway.schemas.admin import Gate, GateMethod
from service.gateway.worker_client.protocol import Worker
from service.messages.replies import GateStates


async def gate_states(worker: Worker, sample: float) -> Gate:
    """How far each fusion method is trusted.

    Args:
        worker: Asked for its states.
        sample: The share of answers that is checked, for the reply.

    Raises:
        WorkerUnavailable: The worker is not ready.
    """
    return _gate(sample, await worker.gate())


async def reset_gate(worker: Worker, sample: float, method: str | None) -> Gate:
    """Forget the checks of one fusion method, or of all if `method` is None.

    Raises:
        UnknownMethod: The worker has no such fusion method.
        WorkerUnavailable: The worker is not ready.
    """
    known = sorted(info.name for info in worker.require().fusion)
    if method is not None and method not in known:
        raise UnknownMethod(
            f"method {method!r} is no fusion method; known methods: {', '.join(known)}",
            field="method",
        )
    return _gate(sample, await worker.gate(reset=method or ""))


def _gate(sample: float, reply: GateStates) -> Gate:
    methods = [GateMethod.model_validate(state, from_attributes=True) for state in reply.states]
    return Gate(sample=sample if reply.on else 0.0, methods=methods)
