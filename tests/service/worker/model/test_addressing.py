"""What is in a chunk's key, and what is not."""

from __future__ import annotations

from typing import Any

from kvstitch.service.worker.model.addressing import Addressing
from tests.service.worker.tiny import BOS, D1, D2, S, Tiny


def addressing(model: Tiny, **changes: Any) -> Addressing:
    return Addressing(model.decoder, **{"fingerprint": "f", "codec": "raw", **changes})


def test_a_key_is_a_matter_of_content(model: Tiny) -> None:
    naming = addressing(model)
    one = naming.document(D1, "none", S, "")
    assert naming.document(list(D1), "none", [], "") == one  # S is no part of a bare chunk
    others = [
        naming.document(D2, "none", S, ""),
        naming.document(D1, "system", S, ""),
        naming.document(D1, "none", S, "tenant"),
        addressing(model, fingerprint="g").document(D1, "none", S, ""),
        addressing(model, codec="int8").document(D1, "none", S, ""),
        addressing(model, secret=b"x").document(D1, "none", S, ""),
    ]
    keys = {one.key, *(other.key for other in others)}
    assert len(keys) == 1 + len(others)


def test_prefixes_by_mode(model: Tiny) -> None:
    naming = addressing(model)
    assert naming.prefix("none", S) == ()
    assert naming.prefix("bos", S) == (BOS,)
    assert naming.prefix("bos", S[1:]) == ()  # a prompt without BOS has none to offer
    assert naming.prefix("bos_keep", S) == ()
    assert naming.prefix("system", S) == tuple(S)


def test_the_spec_is_the_models(model: Tiny) -> None:
    spec = addressing(model).document(D1, "none", S, "").spec
    assert (spec.layers, spec.kv_heads, spec.head_dim) == (5, 2, 16)
    assert spec.tokens == len(D1) and spec.dtype == "float32"
