"""Messages between versions: what an earlier one sent, and what a later one may send, is read.

The bytes are kept as they were sent, in JSON's form of the same maps; whoever changes a message so
that they are no longer read has broken rolling upgrades, and needs a new PROTOCOL.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from kvstitch.service.messages import wire
from kvstitch.service.messages.replies import Failed, Holdings, ModelInfo, Purged, Ready, Stats
from kvstitch.service.messages.requests import (
    Abort,
    ChunkTokens,
    Generate,
    Hello,
    Message,
    Method,
    Ping,
    Precompute,
    Purge,
    Sampling,
)
from kvstitch.service.messages.wire import KNOWN_PROTOCOLS, PROTOCOL

MODEL: dict[str, Any] = {
    "name": "demo", "fingerprint": "0123456789abcdef", "family": "llama", "layers": 12,
    "kv_heads": 2, "head_dim": 32, "dtype": "float32", "max_context": 2048,
    "kv_bytes_per_token": 3072, "codec": "raw", "device": "cpu",
}  # fmt: skip
# As 0.1.0 sent them when workers could not yet run by themselves: without the fields added since.
FROM_EARLIER_WORKER: list[tuple[dict[str, Any], Message]] = [
    (
        {"type": "Stats", "values": [["kvstitch_decode_steps_total", {}, 7.0]], "running": 1,
         "waiting": 2, "pool_free": 0.5},
        Stats([("kvstitch_decode_steps_total", {}, 7.0)], 1, 2, 0.5, False, False, 0.0),
    ),
    (
        {"type": "Ready", "model": MODEL, "fusion": [], "eviction": [], "pool_tokens": 4096},
        Ready(ModelInfo(**MODEL), [], [], 4096, [], 1),
    ),
    ({"type": "Purged", "id": "p", "copies": {"memory": 1}}, Purged("p", {"memory": 1}, [])),
    (
        {"type": "Failed", "id": "r", "code": "overloaded", "message": "full"},
        Failed("r", "overloaded", "full", None),
    ),
]  # fmt: skip
FROM_EARLIER_GATEWAY: list[tuple[dict[str, Any], Message]] = [
    ({"type": "Hello"}, Hello("", 0.0)),
    (
        {"type": "Generate", "id": "r", "system": [1], "documents": [{"chunk_id": 7, "ids": [2]}],
         "question": [3], "fusion": {"name": "pie"}},
        Generate("r", [1], [ChunkTokens(7, [2])], [3], Method("pie"), sampling=Sampling()),
    ),
    (
        {"type": "Precompute", "id": "c", "system": [1], "documents": []},
        Precompute("c", [1], [], "none", "", ""),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("sent", "meant"), FROM_EARLIER_WORKER, ids=lambda x: str(x)[:24])
def test_an_earlier_and_a_later_worker_are_understood(sent: dict[str, Any], meant: Message) -> None:
    assert wire.decode_from_worker(msgspec.msgpack.encode(sent)) == meant
    later = {**sent, "added_later": {"deep": [1, None]}, "zzz": b"\x00"}
    assert wire.decode_from_worker(msgspec.msgpack.encode(later)) == meant


@pytest.mark.parametrize(("sent", "meant"), FROM_EARLIER_GATEWAY, ids=lambda x: str(x)[:24])
def test_an_earlier_and_a_later_gateway_are_understood(
    sent: dict[str, Any], meant: Message
) -> None:
    assert wire.decode_to_worker(msgspec.msgpack.encode(sent)) == meant
    later = {**sent, "added_later": {"deep": [1, None]}, "zzz": b"\x00"}
    assert wire.decode_to_worker(msgspec.msgpack.encode(later)) == meant


# Exact bytes, so that the encoding itself stays: maps with field names, the tag in "type".
GOLDEN: list[tuple[Message, str]] = [
    (Abort("r", "stop"), "83a474797065a541626f7274a26964a172a6726561736f6ea473746f70"),
    (
        Ping("d", 600.0, 1.5),
        "84a474797065a450696e67a6646f6d61696ea164a76c656173655f73cb4082c00000000000"
        "a5636c6f636bcb3ff8000000000000",
    ),
]


@pytest.mark.parametrize(("message", "raw"), GOLDEN, ids=lambda x: str(x)[:12])
def test_bytes_are_what_they_were(message: Message, raw: str) -> None:
    assert wire.encode(message).hex() == raw
    assert wire.decode_to_worker(bytes.fromhex(raw)) == message


def test_every_new_field_has_a_default_and_this_version_knows_itself() -> None:
    assert PROTOCOL in KNOWN_PROTOCOLS
    required = {
        kind.__name__: kind.__struct_fields__[
            : len(kind.__struct_fields__) - len(kind.__struct_defaults__)
        ]
        for kind in (Hello, Ready, Stats, Holdings, Generate, Purge)
    }
    assert required == {
        "Hello": (),
        "Ready": ("model", "fusion", "eviction", "pool_tokens"),
        "Stats": ("values", "running", "waiting", "pool_free"),
        "Holdings": ("number", "added", "removed", "snapshot", "received", "load"),
        "Generate": ("id", "system", "documents", "question", "fusion"),
        "Purge": ("id", "system", "documents"),
    }
