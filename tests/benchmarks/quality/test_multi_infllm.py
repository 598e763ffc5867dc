"""Multi-InfLLM, tensorised, against the eager reference: blocks, picks and logits, over the
question and decode steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
import torch

from benchmarks.quality.multi_infllm import Context, MultiInfLLM, relevance
from service.worker.api import Pie
from service.worker.methods.api import PromptLayout
from tests.references.infllm import InfLLM, default_topk, infllm
from tests.service.worker import tiny as models
from tests.service.worker.methods.sparse.toys import LONG, tokens
from tests.service.worker.tiny import PLAIN_FAMILIES, Q, S, Tiny, assert_close, tiny

ANSWER = [5, 60, 7]
SMALL = MultiInfLLM(block=4, init=4, local=12, topk=3, representatives=2)
Documents = Sequence[Sequence[int]]


@pytest.fixture(autouse=True)
def no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def context(
    model: Tiny,
    documents: Documents,
    method: MultiInfLLM,
    *,
    system: Sequence[int] = S,
    prefix: Sequence[int] = (),
) -> Context:
    segments = [(system, ()), *((ids, prefix) for ids in documents)]
    return Context(
        model.decoder,
        PromptLayout.of(system, documents, Q, uncached=[not ids for ids, _ in segments]),
        [model.precompute(ids, before) if ids else None for ids, before in segments],
        [
            relevance(model.decoder, ids, before, method.local) if ids else None
            for ids, before in segments
        ],
        method,
    )


def check(
    model: Tiny,
    documents: Documents,
    method: MultiInfLLM,
    *,
    system: Sequence[int] = S,
    prefix: Sequence[int] = (),
    question: Sequence[int] = Q,
) -> tuple[Context, InfLLM]:
    ours = context(model, documents, method, system=system, prefix=prefix)
    logits = [ours.extend(question), *(ours.extend([token]) for token in ANSWER)]
    theirs = infllm(
        model.reference,
        system,
        documents,
        question,
        ANSWER,
        prefix=prefix,
        block=method.block,
        init=method.init,
        local=method.local,
        topk=method.topk,
        representatives=method.representatives,
        chunk=method.chunk,
    )
    assert ours.blocks == theirs.blocks
    assert ours.topk == theirs.topk
    assert ours.candidates == theirs.candidates
    assert ours.picked == theirs.picked
    for a, b in zip(logits, theirs.logits, strict=True):
        assert_close("multi-infllm", a, b)
    return ours, theirs


@pytest.mark.parametrize(
    ("family", "rope", "prefix"),
    [
        *((family, "llama3", S) for family in PLAIN_FAMILIES),
        ("qwen2", "llama3", ()),
        ("qwen3", "yarn", ()),
    ],
    ids=str,
)
def test_the_references_picks_and_logits(family: str, rope: str, prefix: Sequence[int]) -> None:
    _, theirs = check(tiny(family, rope), LONG, SMALL, prefix=prefix)
    assert all(len(picked) == 3 for chunk in theirs.picked for picked in chunk)
    assert len({str(chunk) for chunk in theirs.picked}) > 1  # decode steps pick anew


@pytest.mark.parametrize("chunk", [1, 2, 3, 512])
def test_a_question_in_chunks(model: Tiny, chunk: int) -> None:
    method = MultiInfLLM(block=4, init=4, local=12, topk=2, chunk=chunk)
    _, theirs = check(model, LONG, method)
    assert len(theirs.picked) == -(-len(Q) // chunk) + len(ANSWER)


KINDS: dict[str, tuple[Sequence[int], Documents]] = {
    "empty documents": (S, [[], LONG[0], [], LONG[1]]),
    "a document twice": (S, [LONG[0], LONG[0]]),
    "one document": (S, [LONG[2]]),
    "shorter than init": (S, [[11, 12]]),
    "shorter than the window": (S, [LONG[0][:14]]),
    "no documents": (S, []),
    "no system prompt": ([], LONG),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_documents(model: Tiny, kind: str) -> None:
    system, documents = KINDS[kind]
    check(model, documents, SMALL, system=system)


def test_default_options() -> None:
    """Blocks of 64, a window of 128, on documents of 200 tokens each."""
    config = models.tiny_config("llama", "llama3", max_position_embeddings=1024)
    model = models.tiny_of(models.random_model(config))
    ours, theirs = check(model, [tokens(200), tokens(201), tokens(199)], MultiInfLLM())
    assert theirs.topk == 1
    assert len(theirs.candidates[0]) > 4
    assert ours.picked[0] != [[0]] * 5
    assert 0 < ours.kept < 0.5


def test_a_window_over_everything_is_pie(model: Tiny) -> None:
    ours = context(model, LONG, MultiInfLLM(block=4, init=4, local=200))
    run = model.stitch(Pie(), S, LONG, Q)
    assert_close("multi-infllm, wide window", ours.extend(Q), run.logits)
    assert ours.kept == 1


def test_what_is_kept(model: Tiny) -> None:
    """init, the window's part of the documents, picked blocks and the grid's rest, by hand: 162
    document tokens, the last row at 173, window from 162, init 4."""
    ours = context(model, LONG, SMALL)
    ours.extend(Q)
    candidates = [i for i, b in enumerate(ours.blocks) if 169 - b[-1] >= 12]
    rest = {j for b in ours.blocks[len(candidates) :] for j in b}
    window = {j for j in range(162, 169)}
    picked = ours.picked[0][0]
    seen = {*range(7, 11), *rest, *window, *(j for i in picked for j in ours.blocks[i])}
    assert ours.kept == pytest.approx(len(seen) / 162)


@pytest.mark.parametrize("n", [0, 100, 1280, 1920, 3200, 6000])
def test_budget(n: int) -> None:
    assert MultiInfLLM().blocks_for(n) == default_topk(n)
    scaled = MultiInfLLM(block=16, init=16, local=32)
    assert scaled.blocks_for(n) == default_topk(n, block=16, init=16, local=32)
    assert MultiInfLLM(topk=7).blocks_for(n) == 7
