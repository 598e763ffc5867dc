"""An answer that becomes full prefill's where it is uncertain.

What reused KV has of error decides a greedy answer where two tokens are about equally likely. At
the first token that leads by less than the request's `exact_below`, prompt and answer so far are
computed in full, in their place of the pool, and the answer goes on from there:

    running ──► prefilling (prompt and answer so far, in full) ──► running
"""

from __future__ import annotations

from torch import Tensor

from kvstitch.service.worker.forward.attention_pass import Recordings
from kvstitch.service.worker.forward.prefill import prefill
from kvstitch.service.worker.kv.pool import SequenceStates
from kvstitch.service.worker.layout import PromptLayout
from kvstitch.service.worker.methods.bases.fusion import Reads
from kvstitch.service.worker.methods.fusion.vanilla import Method as FullPrefill
from kvstitch.service.worker.methods.layer_view import PrefillResult
from kvstitch.service.worker.model.decoder import DecoderModel
from kvstitch.service.worker.sequences.sequence import EngineSequence
from kvstitch.service.worker.steps import Steps


def uncertain(sequence: EngineSequence, logits: Tensor) -> int | None:
    """Return the first row of logits `[m, vocabulary]`, of the answer's next tokens, in which the
    likeliest token leads by too little; None where there is none, or the answer is exact."""
    least, asked = sequence.asked.request.exact_below, sequence.asked
    if not least or sequence.work.exact_from is not None or sequence.exact:
        return None
    if not sequence.max_tokens:  # nothing is answered
        return None
    if not sequence.sampler.takes_likeliest or asked.eviction is not None:
        return None
    if sequence.fusion.reads is Reads.PARTS:  # its KV has no room for the whole prompt
        return None
    first, second = logits.float().topk(2).values.unbind(-1)
    found = (first - second < least).nonzero()
    return int(found[0]) if len(found) else None


def computed_in_full(
    decoder: DecoderModel, sequence: EngineSequence, recordings: Recordings | None
) -> Steps[PrefillResult]:
    """Return the steps that compute the prompt and the answer so far in the sequence's KV."""
    request, kv = sequence.asked.request, sequence.kv
    assert kv is not None
    documents = [document.ids for document in request.documents]
    layout = PromptLayout.of(
        request.system,
        documents,
        [*request.question, *sequence.tokens],
        uncached=[True] * (1 + len(documents)),
        device=decoder.device,
    )
    kv.states = SequenceStates()
    nothing = [None] * (1 + len(documents))
    return prefill(decoder, layout, nothing, FullPrefill(), kv, recordings=recordings)
