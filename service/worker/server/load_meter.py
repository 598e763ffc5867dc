"""How busy the engine is, and how fast, for gateways that choose between several workers."""

from __future__ import annotations

from service.messages.replies import WorkerLoad
from service.messages.requests import ChunkTokens
from service.worker.engine.engine import Engine
from service.worker.loading.chunk_stream import stored_bytes
from service.worker.methods.bases.cost import PromptShape
from service.worker.model.flops import full_prefill
from service.worker.sequences.sequence import EngineSequence

SAMPLE_TOKENS = 512  # length of the prompt and of the chunk by which a token is reckoned
LOOKED_AT = 16  # sequences of a long queue; the others are reckoned to be like these
DIGITS = 4  # of reported seconds, so that small changes are not worth a message


class LoadMeter:
    """Measures one engine, on the engine's thread."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._token_flops = full_prefill(engine.decoder, SAMPLE_TOKENS) / SAMPLE_TOKENS
        chunk = ChunkTokens(0, [0] * SAMPLE_TOKENS)
        address = engine.admission.addresses([], [chunk], "none", "")[1]
        assert address is not None
        self._token_bytes = stored_bytes(address) / SAMPLE_TOKENS

    def measure(self) -> WorkerLoad:
        """The load now."""
        engine, scheduler = self._engine, self._engine.scheduler
        compute, decode = engine.estimator.compute, engine.decode_times
        token_s = self._token_flops * compute.flop_s
        backlog_s = 0.0
        queue = [*scheduler.prefilling, *scheduler.waiting]
        for sequence in queue[:LOOKED_AT]:
            rows = _rows(sequence, engine.decoder.layers)
            backlog_s += max(0.0, compute.overhead_s + rows * token_s - sequence.computed_s)
        backlog_s *= max(1.0, len(queue) / LOOKED_AT)
        if scheduler.running:  # decode steps take half of the time
            backlog_s *= 2.0
        return WorkerLoad(
            backlog_s=round(backlog_s, DIGITS),
            running=len(scheduler.running) + len(scheduler.prefilling),
            token_s=token_s,
            overhead_s=compute.overhead_s,
            step_s=decode.overhead,
            step_sequence_s=decode.slope,
            token_bytes=self._token_bytes,
            tiers={
                tier: (latency, 1 / bandwidth)
                for tier, (latency, bandwidth) in engine.estimator.tiers.known().items()
            },
        )


def _rows(sequence: EngineSequence, layers: int) -> int:
    """Rows that its prefill computes, as far as is known."""
    if sequence.reuse is not None:
        return sequence.prompt_tokens - sequence.reuse.tokens
    if not sequence.segments:  # the method reads nothing, or the chunks have not been looked up
        return sequence.prompt_tokens
    loads = [load for load in sequence.segments[1:] if load is not None]
    documents = [len(load.address.ids) for load in loads if load.usable]
    uncached = sum(sequence.document_tokens) - sum(documents)
    question = len(sequence.request.question)
    shape = PromptShape(sequence.prompt_tokens, question, layers, uncached, documents)
    return question + uncached + sequence.fusion.recomputed_tokens(shape)
