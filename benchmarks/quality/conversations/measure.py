"""Runs a conversation turn by turn with several ways to treat its history.

Full prefill answers every turn, and its answers are the history of all. Every way has KV of its own
from turn to turn: what it reuses is what it left itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from service.worker.api import (
    DecoderModel,
    HistoryKV,
    KVPool,
    SequenceKV,
    Vanilla,
    decode_step,
    full_prefill_flops,
)
from service.worker.methods.api import CachedSegment, DenseMethod, Prefix, PromptLayout
from tuning.case import Answering
from tuning.prompts import Prompt, SegmentStore, part_store
from tuning.single_prompts import kv_pool, prefill_prompt
from tuning.trial import agreement, divergence


@dataclass(frozen=True)
class Way:
    """A way to compute a prompt with history.

    Attributes:
        reused: from the tokens of the history and how many of these stood in the earlier prompt:
            how many are taken from it. The others belong to the question.
        apart: how many after these are a segment of their own that is computed.
        anew: whether what is taken only serves to choose rows, and is computed then.
    """

    name: str
    method: DenseMethod
    prefix_mode: str
    reused: Callable[[int, int], int] = lambda shared, asked: 0
    apart: Callable[[int, int], int] = lambda shared, asked: 0
    anew: bool = False


@dataclass(frozen=True)
class TurnRecord:
    """What one way did at one turn; see `tuning.trial.Trial`.

    Attributes:
        history: tokens of the question that stood in the turn before.
        reused: how many of them were taken from it.
    """

    conversation: int
    turn: int
    way: str
    tokens: int
    history: int
    reused: int
    answer_tokens: int
    kl: float
    kl_first: float
    agreement: float
    same: float
    operations: float


@dataclass
class _Earlier:
    """The turn before: its prompt and answer, and its KV."""

    prompt: Prompt
    answer: Sequence[int]
    kv: SequenceKV


@dataclass
class Conversations:
    """Measures ways on conversations.

    Attributes:
        longest: tokens of the longest prompt and its answer.
        answer_tokens: longest answer.
    """

    decoder: DecoderModel
    ways: Sequence[Way]
    longest: int
    answer_tokens: int = 60
    _pool: KVPool = field(init=False)

    def __post_init__(self) -> None:
        self._pool = kv_pool(self.decoder, (2 * len(self.ways) + 2) * self.longest)
        self._parts = part_store()

    @torch.inference_mode()
    def run(
        self, number: int, prompt_of: Callable[[int, Sequence[list[int]]], Prompt | None]
    ) -> Iterator[list[TurnRecord]]:
        """Yield the records of each turn.

        Args:
            prompt_of: makes the prompt of a turn from the answers so far; None: there is no more.
        """
        answers: list[list[int]] = []
        earlier: dict[str, _Earlier] = {}
        try:
            while (prompt := prompt_of(len(answers), answers)) is not None:
                records, answer, earlier = self._turn(number, len(answers) + 1, prompt, earlier)
                answers.append(answer)
                yield records
        finally:
            for each in earlier.values():
                each.kv.release()

    def _turn(
        self, number: int, turn: int, prompt: Prompt, earlier: Mapping[str, _Earlier]
    ) -> tuple[list[TurnRecord], list[int], dict[str, _Earlier]]:
        store = SegmentStore(self.decoder, self._parts)
        n = prompt.tokens
        full = self._reserve(prompt)
        layout = PromptLayout.of(
            prompt.system, prompt.documents, prompt.question,
            uncached=[True] * (1 + len(prompt.documents)), device=self.decoder.device,
        )  # fmt: skip
        nothing = [None] * len(layout.segments)
        result = prefill_prompt(self.decoder, layout, nothing, Vanilla(), full)
        full.set_length(n)
        taught, reference = self._answer(full, n, result.logits)
        full.release()
        filled, made = [], {}
        for way in self.ways:
            kv = self._reserve(prompt)
            last = earlier.get(way.name)
            filled.append((way, kv, *self._prefill(way, prompt, store, kv, last)))
            kv.set_length(n)
        answering = [Answering(kv, n) for _, kv, *_ in filled]
        logits = [torch.stack([each[2] for each in filled])]
        for token in taught[: len(reference) - 1]:
            for each in answering:
                each.tokens.append(token)
            logits.append(decode_step(self.decoder, answering))
        own = torch.stack(logits, dim=1)
        # The last token before an end token has no KV yet, as in the engine.
        records = []
        whole = full_prefill_flops(self.decoder, n)
        for (way, kv, _, flops, shared, reused), said in zip(filled, own, strict=True):
            kl, agree = divergence(reference, said), agreement(reference, said)
            records.append(
                TurnRecord(
                    number, turn, way.name, n, shared, reused, len(reference),
                    float(kl.mean()), float(kl[0]), float(agree.mean()),
                    float(agree.min()), flops / whole,
                )
            )  # fmt: skip
            in_place = taught[: kv.filled_tokens - n]
            made[way.name] = _Earlier(prompt, in_place, kv)
        for before in earlier.values():
            before.kv.release()
        ends = self.decoder.end_ids
        return records, [token for token in taught if token not in ends], made

    def _reserve(self, prompt: Prompt) -> SequenceKV:
        kv = self._pool.reserve(prompt.tokens + self.answer_tokens + 2)
        assert kv is not None, "the pool was made for so many"
        return kv

    def _prefill(
        self, way: Way, prompt: Prompt, store: SegmentStore, kv: SequenceKV, before: _Earlier | None
    ) -> tuple[torch.Tensor, float, int, int]:
        segments: list[CachedSegment | None] = [*store.segments(prompt, way.prefix_mode, "raw")]
        prefixes = store.prefixes(prompt, way.prefix_mode)
        documents, question = list(prompt.documents), prompt.question
        uncached = [segment is None for segment in segments]
        shared = reused = 0
        if before is not None:
            start = before.prompt.tokens - len(before.prompt.question)
            said = [*before.prompt.question, *before.answer]
            pairs = zip(said, question, strict=False)
            shared = next((i for i, (a, b) in enumerate(pairs) if a != b), len(said))
            asked = len(before.prompt.question)
            reused, apart = way.reused(shared, asked), way.apart(shared, asked)
            if reused:
                segments.append(HistoryKV(self.decoder, before.kv, slice(start, start + reused)))
                documents.append(question[:reused])
                prefixes.append(Prefix([0] * start, exact=False))
                uncached.append(False)
            if apart:
                segments.append(None)
                documents.append(question[reused : reused + apart])
                prefixes.append(Prefix())
                uncached.append(True)
            question = question[reused + apart :]
        layout = PromptLayout.of(
            prompt.system, documents, question,
            uncached=uncached, prefixes=prefixes,
            ranking_only=[len(prompt.documents)] if way.anew else [],
            device=self.decoder.device,
        )  # fmt: skip
        result = prefill_prompt(self.decoder, layout, segments, way.method, kv)
        return result.logits, result.flops, shared, reused

    def _answer(
        self, kv: SequenceKV, n: int, first: torch.Tensor
    ) -> tuple[list[int], torch.Tensor]:
        """Return full prefill's greedy answer, and the logits along it `[m, vocabulary]`."""
        answering, logits = Answering(kv, n), [first]
        while True:
            answering.tokens.append(int(logits[-1].argmax()))
            if answering.tokens[-1] in self.decoder.end_ids or len(logits) == self.answer_tokens:
                return answering.tokens, torch.stack(logits)
            logits.append(decode_step(self.decoder, [answering])[0])
