"""A model in one process or in several, driven without an engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from kvstore import EncodedChunk
from service.worker.forward.batch_decoder import BatchDecoder
from service.worker.forward.chunk_prefill import ChunkPrefill
from service.worker.forward.evict import evict
from service.worker.forward.prefill import prefill
from service.worker.kv.pool import KVPool, SequenceKV
from service.worker.layout import PromptLayout
from service.worker.methods.bases.dense import DenseMethod
from service.worker.methods.fusion.vanilla import Method as Vanilla
from service.worker.methods.layer_view import CachedSegment
from service.worker.methods.registry import eviction_methods
from service.worker.model.addressing import Address, Addressing
from service.worker.model.decoder import DecoderModel
from service.worker.model.model_facts import ModelFacts
from service.worker.steps import run
from tests.service.worker.tiny import D1, D2, D3, Q, S, assert_close

ANSWER = [5, 6, 7, 8, 9, 10, 11, 12]
DRAFT = ANSWER[-2:]  # fed with the token before them, in one step


@dataclass
class Served:
    """A model with its pool."""

    decoder: DecoderModel
    make_pool: Callable[..., KVPool]

    def pool(self, tokens: int = 200) -> KVPool:
        decoder = self.decoder
        return self.make_pool(
            decoder.layers,
            decoder.own_kv_heads,
            decoder.head_dim,
            tokens,
            dtype=decoder.dtype,
            device=decoder.device,
        )

    def chunks(self, lora: str = "") -> list[EncodedChunk]:
        """S, and the documents behind it."""
        computing, addressing = ChunkPrefill(self.decoder), self.addressing.with_lora(lora)
        addresses: list[Address] = [addressing.system(S, "")]
        addresses += [addressing.document(d, "system", S, "") for d in (D1, D2, D3)]
        return [run(computing.compute(address)).chunk for address in addresses]

    @property
    def addressing(self) -> Addressing:
        return Addressing(self.decoder, fingerprint="tiny", codec="raw")


@dataclass
class Answering:
    """A prompt in a pool, and the answer that is fed to it."""

    kv: SequenceKV
    position: int
    tokens: list[int] = field(default_factory=list)
    lora: str = ""


def answered(
    served: Served,
    method: DenseMethod,
    cached: Sequence[CachedSegment | None],
    eviction: str = "",
    lora: str = "",
) -> tuple[Tensor, Tensor]:
    """Logits of the prompt's last token, and of eight tokens after it."""
    decoder = served.decoder.with_lora(lora)
    layout = PromptLayout.of(S, [D1, D3, D2], Q, uncached=[stored is None for stored in cached])
    pool = served.pool()
    kv = pool.reserve(layout.tokens + len(ANSWER))
    assert kv is not None
    evicting = eviction_methods()[eviction](budget=16) if eviction else None
    result = run(prefill(decoder, layout, cached, method, kv, eviction=evicting))
    kv.set_length(layout.tokens)
    if evicting is not None:
        facts = ModelFacts(decoder.layers, decoder.heads, decoder.kv_heads)
        evict(
            decoder, facts, kv, evicting,
            layout=layout, observed=result.observed, room=len(ANSWER),
        )  # fmt: skip
    decoding, answering = BatchDecoder(served.decoder, pool), Answering(kv, layout.tokens - 1)
    answering.lora = lora
    after = []
    for number, token in enumerate(ANSWER[: -len(DRAFT)]):
        answering.tokens.append(token)
        answering.position = layout.tokens + number
        draft = DRAFT if number == len(ANSWER) - len(DRAFT) - 1 else []
        after.append(decoding.step([answering], [draft]).clone())
    kv.release()
    assert pool.free_share == 1
    return result.logits, torch.cat(after)


def assert_same(claim: str, ours: tuple[Tensor, Tensor], expected: tuple[Tensor, Tensor]) -> None:
    assert_close(f"{claim}, two ranks: prompt", ours[0], expected[0])
    assert_close(f"{claim}, two ranks: answer", ours[1], expected[1])


def decoded_together(served: Served, names: Sequence[str]) -> Tensor:
    """Logits of a step of several sequences with different LoRA adapters, after prompts alike."""
    pool, running = served.pool(400), []
    layout = PromptLayout.of(S, [D1], Q, uncached=[True, True])
    for number, name in enumerate(names):
        kv = pool.reserve(layout.tokens + 1)
        assert kv is not None
        run(prefill(served.decoder.with_lora(name), layout, [None, None], Vanilla(), kv))
        kv.set_length(layout.tokens)
        running.append(Answering(kv, layout.tokens, [ANSWER[number]], name))
    logits = BatchDecoder(served.decoder, pool).step(running)
    for sequence in running:
        sequence.kv.release()
    return logits
