"""Settings that a running service reads again: each takes effect, the others are named."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from kvstitch.service.errors import InvalidSetting, Overloaded, QuotaExceeded
from kvstitch.service.gateway.composition import Gateway
from kvstitch.service.gateway.server import make_server
from kvstitch.service.gateway.workers import ProcessOptions
from kvstitch.service.settings import Settings, load
from kvstitch.service.settings.loading import RELOADABLE
from tests.fakes.models import HashingEmbedder
from tests.service.gateway.rig import Rig, running, until

# A value, the call that shows it, and its status then; before it was another.
SEARCH, EMBED, RERANK = "/v1/search", "/v1/embeddings", "/v1/rerank"
INGEST = "/admin/precompute"
TWO = {"documents": [{"doc_id": "a", "text": "x" * 2000}, {"doc_id": "b", "text": "y"}]}
CALLS: dict[str, tuple[Any, str, dict[str, Any], int]] = {
    "max_top_k": (1, SEARCH, {"query": "Oslo", "top_k": 2}, 422),
    "max_question_chars": (3, SEARCH, {"query": "Oslo"}, 422),
    "max_texts": (1, EMBED, {"input": ["a", "b"]}, 400),
    "max_texts_chars": (3, EMBED, {"input": ["a", "bcdef"]}, 400),
    "max_documents": (1, INGEST, TWO, 422),
    "max_document_bytes": (1024, INGEST, TWO, 413),
    "max_body_values": (100, EMBED, {"input": ["a"] * 200}, 413),
    "tenant_max_documents": (1, INGEST, TWO, 429),
    "tenant_max_bytes": (100, INGEST, TWO, 429),
}
# What these do is looked at in the parts that read them at each call.
IN_PARTS = {
    "cold", "condense", "drain_timeout_s", "exact_below", "history",
    "max_in_flight_per_key", "max_pdf_bytes", "max_tokens_limit", "max_waiting_tokens",
    "rerank_deadline_s", "rerank_timeout_s", "retrieval", "stream_ping_s",
    "tenant_requests_per_minute", "tenant_tokens_per_minute", "unanswerable", "unanswerable_text",
}  # fmt: skip


@pytest.fixture
def rig(folder: Path, data: Path) -> Iterator[Rig]:
    with running(folder, data) as rig:
        rig.ingest()
        yield rig


def reload(rig: Rig, **settings: Any) -> Any:
    read = rig.gateway.settings.model_copy(update=settings)
    return rig.call(lambda: rig.gateway.reload(read))


def test_every_reloadable_setting_is_tried() -> None:
    assert CALLS.keys() | IN_PARTS == RELOADABLE and not CALLS.keys() & IN_PARTS
    assert Settings.model_fields.keys() >= RELOADABLE


def test_calls_are_answered_by_the_new_settings(rig: Rig) -> None:
    before = rig.gateway.settings
    for name, (value, path, body, status) in CALLS.items():
        assert rig.http.post(path, json=body).status_code in (200, 202), name
        assert reload(rig, **{name: value}).changed == [name]
        reply = rig.http.post(path, json=body)
        assert reply.status_code == status, (name, reply.text)
        reload(rig, **{name: getattr(before, name)})
    assert rig.gateway.settings == before


def test_parts_look_at_the_new_settings(rig: Rig) -> None:
    gateway = rig.gateway
    found = reload(
        rig, max_waiting_tokens=7, max_in_flight_per_key=1, tenant_requests_per_minute=5,
        tenant_tokens_per_minute=6, retrieval="sparse", max_tokens_limit=2,
    )  # fmt: skip
    assert len(found.changed) == 6 and found.need_restart == []
    answers = gateway.answers
    for part in (answers.validator, answers.preparer, gateway.searches):
        assert part.settings() is gateway.settings
    for within in (gateway.searches.passages, gateway.rerankings, gateway.embeddings):
        assert within._settings() is gateway.settings
    assert gateway._quotas.per_tenant.requests_per_minute == 5
    assert gateway._quotas.per_tenant.tokens_per_minute == 6
    slot = gateway.limiter.acquire(5, "k")
    with pytest.raises(Overloaded):
        gateway.limiter.acquire(5)
    slot.prefilled()
    with pytest.raises(QuotaExceeded):
        gateway.limiter.acquire(5, "k")
    slot.close()
    reply = rig.ask(top_k=1, max_tokens=50)
    assert reply.json()["usage"]["completion_tokens"] <= 2


def test_what_needs_a_restart_stays_and_is_named(rig: Rig) -> None:
    before = rig.gateway.settings
    found = reload(rig, port=9, max_top_k=5, codec="int8")
    assert found.need_restart == ["codec", "port"] and found.changed == ["max_top_k"]
    assert "only a restart changes codec, port" in found.told()
    now = rig.gateway.settings
    assert (now.port, now.codec, now.max_top_k) == (before.port, before.codec, 5)
    assert reload(rig, max_top_k=5).changed == []


def test_sighup_reads_the_file_again(
    folder: Path, data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The server in this thread, because signals come to the main one; what asks is in another."""
    file = tmp_path / "kvstitch.toml"
    file.write_text("max_texts = 9\n")

    def read() -> Settings:
        return load(file, model=str(folder), data_dir=data, port=0)

    options = ProcessOptions(address=f"ipc://{data}/nobody.sock")
    gateway = Gateway(read(), folder, embedder=HashingEmbedder(), processes=options)
    server = make_server(gateway, reread=read)
    said: list[str] = []

    def told(expected: str) -> None:
        signal.raise_signal(signal.SIGHUP)
        until(lambda: any(expected in line for line in caplog.messages), expected)

    def asking() -> None:
        try:
            until(lambda: server.started, "started")
            (listening,) = server.servers[0].sockets
            url = f"http://127.0.0.1:{listening.getsockname()[1]}/health/live"
            file.write_text("max_texts = 3\nmax_running = 3\n")
            told("max_texts changed; only a restart changes max_running")
            file.write_text("max_texs = 3\n")
            told("did you mean max_texts?")
            assert httpx.get(url).status_code == 200
        except BaseException as error:
            said.append(repr(error))
        finally:
            server.should_exit = True

    caplog.set_level("INFO", logger="kvstitch")
    before = signal.getsignal(signal.SIGHUP)
    thread = threading.Thread(target=asking)
    thread.start()
    asyncio.run(server.serve())
    thread.join()
    assert not said and gateway.settings.max_texts == 3
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_DFL
    signal.signal(signal.SIGHUP, before)
    with pytest.raises(InvalidSetting):
        read()
