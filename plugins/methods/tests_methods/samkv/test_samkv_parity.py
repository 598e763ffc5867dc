"""SamKV as a whole against the reference: what is needed, kept, computed and read, the cache and
the answer, for every family, switch and kind of documents (specification.md §1.7, Q1–Q8)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kvstitch_methods.samkv.sketch import BlockGrid
from kvstitch_methods.samkv.sparse_method import SamKV
from tests.service.worker.tiny import D1, D2, D3, PREFIXES, Q, S, Tiny, difference, rope_of, tiny
from tests_methods.samkv.parity import (
    ANSWER,
    Documents,
    assert_same_decode,
    check,
    expected,
)
from tests_methods.samkv.toys import LONG, PAPER, tokens

pytestmark = pytest.mark.exhaustive


@pytest.mark.parametrize("mode", ["none", "system"])
@pytest.mark.parametrize("update", ["overwrite", "fusion"])
def test_every_family(any_family: Tiny, mode: str, update: str) -> None:
    """Own sketches; then decode. The paper's rule, every layer asked how much is needed."""
    every = tuple(range(any_family.decoder.layers))
    ours, theirs = check(
        f"samkv {update}",
        any_family,
        method=replace(PAPER, update=update),
        prefix=PREFIXES[mode],
        stable_layers=every,
        room=len(ANSWER),
    )
    assert theirs.m > 0
    assert_same_decode(any_family, ours, theirs)


@pytest.mark.parametrize("family", ["gemma2", "gpt_oss", "mixtral"])
def test_windows_soft_caps_and_sinks(family: str) -> None:
    """In sketches, in the passes over kept tokens, and in decoding over them."""
    model = tiny(family, rope_of(family))
    every = tuple(range(model.decoder.layers))
    ours, theirs = check(f"samkv {family}", model, prefix=S, stable_layers=every, room=len(ANSWER))
    assert_same_decode(model, ours, theirs)


SWITCHES: dict[str, dict[str, Any]] = {
    "no selection": {"selection": False},
    "no bias": {"personalised_bias": False},
    "no recomputation": {"recompute": False},
    "minmax": {"normalise": "minmax"},
    "softmax": {"normalise": "softmax"},
    "neither selection nor recomputation": {"selection": False, "recompute": False},
    "15 % recomputed": {"max_recomputed": 0.15},
    "nothing of the ends recomputed": {"max_recomputed": 0.0},
    "one block kept": {"max_kept": 0.0},
    "as served": {"max_recomputed": 0.15, "max_kept": 0.7, "update": "fusion"},
}


@pytest.mark.parametrize("name", SWITCHES)
def test_every_switch(name: str) -> None:
    """On a model whose question needs three blocks, and others without the bias."""
    model = tiny("llama", "llama3")
    changed = replace(PAPER, **SWITCHES[name])
    _, theirs = check(f"samkv {name}", model, method=changed, stable_layers=(0, 1, 2, 3, 4))
    plain = expected(model, LONG, PAPER, stable_layers=(0, 1, 2, 3, 4))
    assert plain.m == 3
    if name not in ("minmax", "softmax"):
        assert difference(theirs.logits, plain.logits) > 1e-3


def test_calibrated_layers_decide_how_much(model: Tiny) -> None:
    """N*: the last eighth unless the model knows better."""
    found = {
        check("samkv stable layers", model, stable_layers=layers)[1].m
        for layers in ((), (0,), (1,), (2,), (3,), (0, 4))
    }
    assert len(found) > 1


KINDS: dict[str, Documents] = {
    "one document": [LONG[0]],
    "one short document": [D1],
    "a document twice": [LONG[0], LONG[1], LONG[0]],
    "empty documents among others": [[], LONG[0], [], LONG[2], []],
    "short and long": [D1, LONG[0], D2, LONG[1], [7]],
    "only short": [D1, D2, D3],
    "one-token documents": [[11], [33], [51]],
    "only empty documents": [[], []],
    "no documents": [],
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("update", ["overwrite", "fusion"])
def test_every_kind_of_documents(model: Tiny, kind: str, update: str) -> None:
    ours, theirs = check(
        f"samkv {update}, documents",
        model,
        KINDS[kind],
        replace(PAPER, update=update, max_recomputed=0.15),
        stable_layers=(0, 1, 2, 3, 4),
        room=len(ANSWER),
    )
    assert_same_decode(model, ours, theirs)


@pytest.mark.parametrize("block", [16, 64])
def test_every_length(block: int) -> None:
    """Documents of 1 to 200 tokens, by themselves or together; on the model that rounding
    disturbs least (with 200 tokens full prefills differ by 1e-5; by 5e-5 with YaRN)."""
    model = tiny("llama", "llama3")
    lengths = ([1, 15, 16, 17, 48, 49], [63, 64, 65], [81, 129], [192], [193], [200])
    middles = 0
    for several in lengths:
        documents = [tokens(length) for length in several]
        method = SamKV(max_kept=1.0)
        _, theirs = check(f"samkv in blocks of {block}", model, documents, method, block=block)
        middles += sum(BlockGrid(n, block).blocks > 3 for n in several)
        assert theirs.trace.n == len(S) + sum(several) + len(Q)
    assert middles == {16: 9, 64: 2}[block]
