"""The audit log: one entry for every call that asks or changes something, and no one cuts or
changes any without being found."""

from __future__ import annotations

import hashlib
import json
import random
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from importlib import import_module
from itertools import chain
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import pytest

import kvstitch.service.gateway.http.routes
from kvstitch.service.cli import main
from kvstitch.service.errors import DiskFull
from kvstitch.service.gateway.service_database import shared_database
from kvstitch.service.messages.requests import Generate
from kvstitch.service.settings import all_settings, load
from kvstitch.service.settings.fields import IS_SET, hidden
from kvstitch_audit.audit_log import AuditLog, now, recorded
from kvstitch_audit.audit_trail import ACTIONS
from kvstitch_audit.chain import GENESIS, RETENTION, Event, Head, sealed, verify, written
from kvstitch_audit.part import part_of
from tests.fakes.issuer import AUDIENCE, issuing
from tests.service.gateway.rig import Rig, asking, running, until
from tests_mcp.calls import mcp_call

Create = Callable[..., str]
QUESTION = "What is the capital of Norway?"
ASKED: dict[str, Any] = {"question": QUESTION, "top_k": 1}

SAID = [{"role": "user", "content": QUESTION}]


@pytest.fixture
def audited(folder: Path, data: Path, create: Create, database: str) -> Iterator[Rig]:
    """A service with an audit log and a key, which the rig's client uses."""
    with running(folder, data, database=database, audit=True) as rig:
        rig.ingest()
        yield rig


def entries(rig: Rig, key: str = "") -> list[dict[str, Any]]:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    reply = rig.http.get("/admin/audit", headers=headers)
    assert reply.status_code == 200, reply.text
    found: list[dict[str, Any]] = reply.json()["entries"]
    return found


# A call of every route that does more than read; what it answers is looked at, too.
DIFY = {"knowledge_id": "default", "query": QUESTION, "retrieval_setting": {"top_k": 2}}
CALLS: dict[str, list[tuple[str, dict[str, Any], int]]] = {
    "POST /v1/rag/generate": [
        ("/v1/rag/generate", {"json": ASKED}, 200),
        ("/v1/rag/generate", {"json": {**ASKED, "stream": True}}, 200),
        ("/v1/rag/generate", {"json": {**ASKED, "explain": True}}, 200),
        ("/v1/rag/generate", {"json": {"question": QUESTION, "top_k": -1}}, 422),
        ("/v1/rag/generate", {"content": b"{"}, 415),
        ("/v1/rag/generate", {"json": {**ASKED, "fusion": {"method": "none"}}}, 422),
    ],
    "POST /v1/chat/completions": [
        ("/v1/chat/completions", {"json": {"messages": SAID}}, 200),
        ("/v1/chat/completions", {"json": {"messages": SAID, "stream": True}}, 200),
        ("/v1/chat/completions", {"json": {"model": "none", "messages": []}}, 400),
    ],
    "POST /v1/completions": [
        ("/v1/completions", {"json": {"prompt": QUESTION}}, 200),
        ("/v1/completions", {"json": {"prompt": [QUESTION, "And of Italy?"]}}, 200),
    ],
    "POST /v1/responses": [("/v1/responses", {"json": {"input": QUESTION}}, 200)],
    "POST /v1/messages": [
        ("/v1/messages", {"json": {"messages": SAID}}, 200),
        ("/v1/messages", {"json": {"messages": SAID, "stream": True}}, 200),
        ("/v1/messages", {"json": {"messages": []}}, 400),
    ],
    "POST /v1/messages/count_tokens": [
        ("/v1/messages/count_tokens", {"json": {"messages": SAID}}, 200),
    ],
    "POST /v1/search": [("/v1/search", {"json": {"query": QUESTION}}, 200)],
    "POST /v1/rerank": [("/v1/rerank", {"json": {"query": QUESTION, "documents": ["a"]}}, 409)],
    "POST /v1/embeddings": [("/v1/embeddings", {"json": {"input": "a"}}, 200)],
    "POST /retrieval": [("/retrieval", {"json": DIFY}, 200), ("/retrieval", {}, 422)],
    "POST /mcp": [("/mcp", mcp_call("ask", {"question": QUESTION}), 200),
                  ("/mcp", {"content": b"{"}, 400)],
    "DELETE /mcp": [("/mcp", {"headers": {"MCP-Protocol-Version": "2026-07-28"}}, 405)],
    "POST /admin/precompute": [
        ("/admin/precompute", {"json": {"documents": [{"doc_id": "new", "text": "x"}]}}, 202),
        ("/admin/precompute", {"json": {"documents": [{"doc_id": "new"}]}}, 422),
        ("/admin/precompute", {"content": b"x", "params": {"doc_id": "t"},
                               "headers": {"Content-Type": "text/plain"}}, 202),
    ],
    "DELETE /admin/jobs/{job_id}": [("/admin/jobs/none", {}, 404)],
    "PUT /admin/pins/{doc_id:path}": [("/admin/pins/oslo", {}, 200), ("/admin/pins/a/b", {}, 404)],
    "DELETE /admin/pins/{doc_id:path}": [("/admin/pins/oslo", {}, 200)],
    "POST /admin/gate/reset": [("/admin/gate/reset", {"json": {}}, 200),
                               ("/admin/gate/reset", {"json": {"method": "none"}}, 422)],
    "POST /admin/renames": [("/admin/renames", {"json": {"doc_id": "none", "new_id": "x"}}, 404)],
    "DELETE /admin/documents/{doc_id:path}": [("/admin/documents/oslo", {}, 200),
                                              ("/admin/documents/oslo", {}, 404)],
    "POST /admin/deletions": [("/admin/deletions", {"json": {"doc_ids": ["rome", "x"]}}, 200),
                              ("/admin/deletions", {"json": {}}, 422)],
    "DELETE /admin/collections/{collection:path}": [("/admin/collections/default", {}, 200)],
}  # fmt: skip


def test_every_route_that_is_not_only_read_leaves_entries(rig: Rig) -> None:
    """A new one fails this until it is in ACTIONS, and in CALLS."""
    folder = kvstitch.service.gateway.http.routes
    modules = [import_module(f"{folder.__name__}.{m.name}") for m in iter_modules(folder.__path__)]
    routers = [module.router for module in modules]
    routers += chain.from_iterable(part.routers for part in rig.gateway.parts)
    found = {
        f"{method} {route.path}"
        for router in routers
        for route in router.routes
        for method in route.methods or ()
    }
    found = {route for route in found if not route.startswith("GET ")}
    assert found == ACTIONS.keys() == CALLS.keys() | {"POST /ui/sign-in"}  # plugins/oidc


BOTH = pytest.mark.parametrize("database", ["sqlite", "postgresql"], indirect=True)


@BOTH
def test_every_call_leaves_one_entry(audited: Rig) -> None:
    number = entries(audited)[-1]["number"]
    for route, calls in CALLS.items():
        for path, sent, status in calls:
            reply = audited.http.request(route.partition(" ")[0], path, **sent)
            assert reply.status_code == status, (route, reply.text)
            new = [entry for entry in entries(audited) if entry["number"] > number]
            assert len(new) == 1, (route, new)
            [entry] = new
            assert entry["route"] == route and entry["action"] == ACTIONS[route]
            assert entry["status"] == status and entry["actor"] == "anonymous"
            assert entry["request_id"] == reply.headers["x-request-id"]
            number = entry["number"]
    for path in ("/v1/models", "/admin/documents", "/admin/audit", "/metrics"):
        assert audited.http.get(path).status_code == 200
    audited.http.post("/nowhere")
    audited.http.put("/admin/documents")
    assert entries(audited)[-1]["number"] == number, "reading leaves none, nor what is not there"


def test_what_entries_say(audited: Rig) -> None:
    audited.ask()
    [asked] = [e for e in entries(audited) if e["action"] == "ask"]
    digest = hashlib.sha256(QUESTION.encode()).hexdigest()
    assert asked["details"] == {"question_sha256": digest, "collection": "default"}
    assert "Norway" not in json.dumps(entries(audited))
    both = {"prompt": [QUESTION, "And of Italy?"]}
    audited.http.post("/v1/completions", json=both)
    assert entries(audited)[-1]["details"]["question_sha256"][0] == digest
    [ingested] = [e for e in entries(audited) if e["action"] == "ingest"]
    assert ingested["details"]["doc_ids"] == ["default/oslo", "default/bergen", "default/rome"]
    assert ingested["details"]["documents"] == 3 and ingested["details"]["job_id"]
    gone = audited.http.delete("/admin/documents/oslo", params={"collection": "default"}).json()
    deleted = entries(audited)[-1]["details"]
    assert deleted == {"doc_id": "oslo", "collection": "default", "documents": 1,
                       "doc_ids": ["oslo"], "receipt_id": gone["receipt_id"]}  # fmt: skip


@pytest.mark.parametrize("kept", ["text", "none"])
def test_questions_are_kept_as_the_setting_says(folder: Path, data: Path, kept: str) -> None:
    with running(folder, data, audit=True, audit_questions=kept) as rig:
        rig.ask(top_k=0)
        details = entries(rig)[-1]["details"]
    assert details.get("question") == (QUESTION if kept == "text" else None)
    assert "question_sha256" not in details


def test_a_client_that_goes_leaves_an_entry(audited: Rig) -> None:
    assert audited.worker is not None
    worker = audited.worker
    worker.held = True
    with asking(audited, "/v1/rag/generate", ASKED):
        until(lambda: worker.seen(Generate), "the worker has it")
    until(lambda: [e for e in entries(audited) if e["action"] == "ask"], "recorded")
    left = [e for e in entries(audited) if e["action"] == "ask"]
    assert [entry["status"] for entry in left] == [499]


def test_tenants_see_their_own_entries_and_only_who_reads_everything_does(
    folder: Path, data: Path, create: Create
) -> None:
    red, blue = create("--tenant", "red"), create("--tenant", "blue")
    some = create("--tenant", "red", "--group", "hr")
    other = create("--tenant", "red", "--scope", "admin")
    with running(folder, data, audit=True) as rig:
        bearer = {"Authorization": f"Bearer {red}"}
        rig.http.post("/v1/rag/generate", json={**ASKED, "top_k": 0}, headers=bearer)
        [entry] = entries(rig, red)
        assert entry["actor"] == red.split("_")[1] and entry["tenant"] == "red"
        assert entries(rig, blue) == []
        for key, says in ((some, "all groups"), (other, "scope 'audit'")):
            refused = rig.http.get("/admin/audit", headers={"Authorization": f"Bearer {key}"})
            assert refused.status_code == 403 and says in refused.text
        number = len(entries(rig, red))
        for headers in ({"Authorization": "Bearer kvs_wrong"}, {}):
            denied = rig.http.post("/v1/rag/generate", json=ASKED, headers=headers)
            assert denied.status_code == 401
        assert len(entries(rig, red)) == number, "strangers cannot fill it"
        lacks = rig.http.post("/v1/search", json={"query": "x"},
                              headers={"Authorization": f"Bearer {other}"})  # fmt: skip
        assert lacks.status_code == 403
        assert entries(rig, red)[-1]["status"] == 403, "who has a key is recorded"


def test_the_sender_of_a_token_is_named(folder: Path, data: Path) -> None:
    with issuing() as issuer:
        settings: dict[str, Any] = {
            "oidc_issuer": issuer.name,
            "oidc_audience": AUDIENCE,
            "oidc_all_groups": "all",
            "oidc_scopes": "*=generate,*=audit",
        }
        with running(folder, data, audit=True, **settings) as rig:
            token = issuer.token(sub="anna", groups=["all"])
            rig.http.headers["Authorization"] = f"Bearer {token}"
            rig.ask(top_k=0)
            assert entries(rig)[-1]["actor"] == "sub:anna"
            assert token not in json.dumps(entries(rig)) and issuer.url in json.dumps(entries(rig))


def test_pages_and_the_head(audited: Rig) -> None:
    for _ in range(3):
        audited.ask(top_k=0)
    whole = audited.http.get("/admin/audit").json()
    assert whole["next"] is None
    found, after = [], 0
    while True:
        page = audited.http.get("/admin/audit", params={"after": after, "limit": 2}).json()
        found += page["entries"]
        if page["next"] is None:
            break
        after = page["next"]
    assert found == whole["entries"]
    assert verify(found, {"": Head(**whole["head"])}) == []


def test_without_an_audit_log(rig: Rig) -> None:
    reply = rig.http.get("/admin/audit")
    assert reply.status_code == 409 and reply.json()["code"] == "no_audit_log"


def test_no_answer_without_an_entry(folder: Path, data: Path) -> None:
    """Where it cannot be written, neither an answer nor a stream is given."""
    with running(folder, data, audit=True) as rig:
        rig.ingest()
        with closing(sqlite3.connect(data / "audit.sqlite3")) as other:
            other.execute("CREATE TRIGGER stop BEFORE INSERT ON audit_entries BEGIN "
                          "SELECT RAISE(ABORT, 'no room'); END")  # fmt: skip
            other.commit()
            for body in (ASKED, {**ASKED, "stream": True}):
                reply = rig.http.post("/v1/rag/generate", json=body)
                assert reply.status_code >= 500 and "audit log cannot be written" in reply.text
                assert "Oslo" not in reply.text
            other.execute("DROP TRIGGER stop")
            other.commit()
        assert rig.ask().status_code == 200
        assert [e["action"] for e in entries(rig)] == ["settings", "ingest", "ask"]
        assert rig.gateway.limiter.in_flight == 0


# -- the chain ---------------------------------------------------------------------------------


def made_chain(count: int, tenant: str = "red") -> tuple[list[dict[str, Any]], dict[str, Head]]:
    head, out = Head(), []
    for number in range(count):
        entry = sealed(Event(tenant, "k1", "ask", now(), {"number": number}), head)
        head = Head(entry["number"], entry["hash"])
        out.append(entry)
    return out, {tenant: head}


def test_a_whole_chain_is_whole() -> None:
    red, heads = made_chain(9)
    blue, more = made_chain(4, "blue")
    mixed = [red.pop(0), *blue, *red]
    assert verify(mixed, {**heads, **more}) == []
    assert verify([], {}) == []


@pytest.mark.parametrize("seed", range(30))
def test_whatever_is_done_to_a_chain_is_found(seed: int) -> None:
    rng = random.Random(seed)
    whole, heads = made_chain(20)
    done = [dict(entry) for entry in whole]
    at = rng.randrange(20)
    what = ["cut", "change", "move", "twice", "add", "tail", "front", "rehash", "rename"][seed % 9]
    if what == "cut":
        del done[at]
    elif what == "change":
        field = rng.choice(["actor", "action", "at", "details", "status", "previous", "hash"])
        done[at][field] = GENESIS if field in ("previous", "hash") else "other"
        if at == 0 and field == "previous":
            done[at][field] = "f" * 64
    elif what == "move":
        other = (at + 1 + rng.randrange(19)) % 20
        done[at], done[other] = done[other], done[at]
    elif what == "twice":
        done.insert(at, done[at])
    elif what == "add":
        done.insert(at, sealed(Event("red", "k2", "delete", now()), Head(at, GENESIS)))
    elif what == "tail":
        del done[1 + at // 2 :]
    elif what == "front":
        del done[: 1 + at // 2]
    elif what == "rehash":  # an entry that fits itself, but not what comes after
        changed = {**done[at], "actor": "k2"}
        done[at] = sealed(Event("red", "k2", "ask", "then"), Head(at, changed["previous"]))
    else:
        done[at]["tenant"] = "blue"
    assert verify(done, heads), what
    assert verify(whole, heads) == []


def test_an_end_that_is_not_known_is_no_whole_chain() -> None:
    whole, heads = made_chain(3)
    assert "not known where it ends" in verify(whole, {})[0]
    assert verify([], heads), "all of it was cut"
    assert verify([3, {"tenant": 5}, {"tenant": "red"}], {})


def test_everything_rewritten_is_found_by_a_head_that_was_noted(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Who can write to the database can make another chain, whole in itself."""
    noted = {}
    for actor in ("k1", "k2"):
        file = data / actor / "audit.sqlite3"
        with closing(AuditLog(file)) as log:
            log.start()
            log.append([Event("", actor, "ask", f"2026-01-0{n}") for n in range(1, 6)])
            noted[actor] = log.heads()[""]
    head = f"{noted['k1'].number}:{noted['k1'].hash}"
    assert main(["audit", "verify", "--data-dir", str(data / "k1"), "--head", head]) == 0
    assert main(["audit", "verify", "--data-dir", str(data / "k2")]) == 0
    assert main(["audit", "verify", "--data-dir", str(data / "k2"), "--head", head]) == 1
    assert "noted" in capsys.readouterr().out


# -- the database ------------------------------------------------------------------------------


@pytest.fixture
def log(tmp_path: Path, database: str) -> Iterator[Callable[[], AuditLog]]:
    """Another process's, each call."""
    opened: list[AuditLog] = []

    def one() -> AuditLog:
        where = shared_database(database) if database else tmp_path / "audit.sqlite3"
        opened.append(AuditLog(where))
        opened[-1].start()
        return opened[-1]

    yield one
    for each in opened:
        each.close()


@BOTH
def test_several_processes_write_one_chain(log: Callable[[], AuditLog]) -> None:
    logs = [log() for _ in range(3)]

    def write(number: int) -> None:
        for turn in range(15):
            logs[number].append([Event(tenant, f"p{number}", "ask", now(), {"turn": turn})
                                 for tenant in ("red", "")])  # fmt: skip

    threads = [threading.Thread(target=write, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    heads = logs[0].heads()
    assert {tenant: head.number for tenant, head in heads.items()} == {"red": 45, "": 45}
    assert verify(logs[1].all(heads), heads) == []


@BOTH
def test_forgetting_keeps_the_chain(log: Callable[[], AuditLog]) -> None:
    ours = log()
    for day in range(1, 9):
        ours.append([Event(tenant, "k", "ask", f"2026-01-0{day}") for tenant in ("red", "blue")])
    ours.append([Event("new", "k", "ask", "2026-02-01")])
    assert ours.forget("2026-01-04") == 6
    heads = ours.heads()
    kept = list(ours.all(heads))
    assert verify(kept, heads) == []
    red = [entry for entry in kept if entry["tenant"] == "red"]
    assert [entry["number"] for entry in red] == [4, 5, 6, 7, 8, 9]
    assert red[-1]["action"] == RETENTION and red[-1]["details"]["through"] == 3
    assert ours.forget("2026-01-04") == 0 and ours.heads() == heads, "nothing is left to say"
    more = [e for e in kept if e["number"] != 4 or e["tenant"] != "red"]
    assert verify(more, heads), "one more was cut than was forgotten"
    assert verify([e for e in kept if e["action"] != RETENTION], heads)
    assert ours.forget("2027") == len(kept)
    assert verify(ours.all(ours.heads()), ours.heads()) == []
    assert {e["action"] for e in ours.all(ours.heads())} == {RETENTION}


def test_old_entries_are_forgotten_by_the_service(folder: Path, data: Path) -> None:
    with closing(AuditLog(data / "audit.sqlite3")) as old:
        old.start()
        old.append([Event("", "k", "ask", "2020-01-01")])
    with running(folder, data, audit=True, audit_retention_days=30) as rig:
        rig.ask(top_k=0)
        until(lambda: RETENTION in [e["action"] for e in entries(rig)], "forgotten")
        found = entries(rig)
        assert [e["number"] for e in found] == [2, 3, 4]
    assert main(["audit", "verify", "--data-dir", str(data)]) == 0


# -- the command line --------------------------------------------------------------------------


def test_export_and_verify(
    folder: Path, data: Path, create: Create, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["audit", "verify", "--data-dir", str(data)]) == 2, "no service has kept one"
    assert "no audit log" in capsys.readouterr().err
    key = create("--name", "before")
    with running(folder, data, audit=True) as rig:
        rig.http.headers["Authorization"] = f"Bearer {key}"
        rig.ask(top_k=0)
        later = create("--tenant", "red", "--name", "anna", "--group", "hr")
    assert main(["keys", "revoke", later.split("_")[1], "--data-dir", str(data)]) == 0
    capsys.readouterr()
    assert main(["audit", "export", "--data-dir", str(data)]) == 0
    text = capsys.readouterr().out
    lines = [json.loads(line) for line in text.splitlines()]
    assert [e["action"] for e in lines[:-1]] == ["settings", "ask", "create_key", "revoke_key"]
    made = lines[2]
    assert made["tenant"] == "red" and made["actor"].startswith("operator:")
    assert made["details"]["key_id"] == later.split("_")[1] and made["details"]["groups"] == ["hr"]
    for secret in (key, later, key.split("_")[2], later.split("_")[2]):
        assert secret not in text, "never a secret"
    file = tmp_path / "audit.jsonl"
    changes: list[tuple[Callable[[list[str]], list[str]], int]] = [
        (lambda lines: lines, 0),
        (lambda lines: lines[1:], 1),
        (lambda lines: lines[:-1], 1),
        (lambda lines: [lines[0], *lines[2:]], 1),
        (lambda lines: [lines[1], lines[0], *lines[2:]], 1),
        (lambda lines: [lines[0], lines[1].replace('"ask"', '"bsk"'), *lines[2:]], 1),
        (lambda lines: [*lines[:2], *lines[4:]], 1),
    ]
    for change, code in changes:
        file.write_text("\n".join(change(text.splitlines())))
        assert main(["audit", "verify", str(file), "--json"]) == code
        told = json.loads(capsys.readouterr().out)
        assert told["whole"] is (code == 0) and bool(told["faults"]) is (code == 1)
    assert main(["audit", "export", "--tenant", "red", "--data-dir", str(data)]) == 0
    file.write_text(capsys.readouterr().out)
    assert "settings" not in file.read_text()
    assert main(["audit", "verify", str(file)]) == 0, "a tenant's chain stands by itself"
    for wrong in ("7", "7:abc", "x:" + "0" * 64):
        assert main(["audit", "verify", str(file), "--head", wrong]) == 2
    file.write_text("no JSON")
    assert main(["audit", "verify", str(file)]) == 2


def test_a_line_that_was_changed_in_the_database_is_found(
    folder: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with running(folder, data, audit=True) as rig:
        for _ in range(3):
            rig.ask(top_k=0)
    assert main(["audit", "verify", "--data-dir", str(data)]) == 0
    for change in (
        "DELETE FROM audit_entries WHERE number = 2",
        "DELETE FROM audit_entries WHERE number = 4",
        "DELETE FROM audit_entries WHERE number = 1",
        "UPDATE audit_entries SET entry = replace(entry, 'anonymous', 'somebody') WHERE number = 3",
        "UPDATE audit_entries SET number = 9 WHERE number = 2",
        "UPDATE audit_entries SET entry = 'x' WHERE number = 2",
        "UPDATE audit_heads SET number = 3",
    ):
        with closing(sqlite3.connect(data / "audit.sqlite3")) as database:
            kept = [*database.iterdump()]
            database.execute(change)
            database.commit()
        assert main(["audit", "verify", "--data-dir", str(data)]) == 1, change
        (data / "audit.sqlite3").unlink()
        with closing(sqlite3.connect(data / "audit.sqlite3")) as database:
            database.executescript("\n".join(kept))
    assert main(["audit", "verify", "--data-dir", str(data)]) == 0


def test_a_reload_is_recorded_and_changes_the_log_too(audited: Rig) -> None:
    rig = audited

    def reload(**settings: Any) -> Any:
        read = rig.gateway.settings.model_copy(update=settings)
        return rig.call(lambda: rig.gateway.reload(read))

    changed = reload(audit_questions="text", audit_retention_days=3.0, max_tokens_limit=2).changed
    assert changed == ["audit_questions", "audit_retention_days", "max_tokens_limit"]
    rig.ask(top_k=0)
    assert entries(rig)[-1]["details"]["question"] == QUESTION
    (_, entry) = (e["details"] for e in entries(rig) if e["action"] == "settings")
    assert entry["changed"] == changed and entry["need_restart"] == []
    assert entry["settings"]["max_tokens_limit"] == 2
    writer = part_of(rig.gateway).writer
    assert writer is not None and writer.settings.audit_retention_days == 3.0

    def full(events: Any) -> None:
        raise DiskFull("no room")

    with pytest.MonkeyPatch.context() as patch, pytest.raises(DiskFull):
        patch.setattr(writer.log, "append", full)
        reload(max_top_k=5)
    assert rig.gateway.settings.max_top_k == 64, "what cannot be recorded is not done"


# -- settings ----------------------------------------------------------------------------------


def test_other_settings_leave_an_entry(folder: Path, data: Path) -> None:
    tried: list[dict[str, Any]] = [
        {"max_running": 7},
        {"max_running": 7},
        {"max_running": 8, "max_top_k": 3},
    ]
    for settings in tried:
        with running(folder, data, audit=True, **settings) as rig:
            found = [e for e in entries(rig) if e["action"] == "settings"]
    assert len(found) == 2, "the second start changed nothing"
    first, second = (entry["details"] for entry in found)
    assert first["settings"]["max_running"] == 7 and second["settings"]["max_running"] == 8
    assert second["changed"] == ["max_running", "max_top_k"]


def test_no_secret_setting_is_recorded() -> None:
    """A new setting that holds text fails this until it is known whether it may hold a secret."""
    shown = {
        "allowed_hosts", "allowed_origins", "calibration", "cors_origins", "device", "embedder",
        "embedder_revision", "encryption_kms", "hand_over_dir", "host",
        "kv_ttl", "lora", "lora_precompute", "model",
        "oidc_algorithms",
        "oidc_all_groups", "oidc_audience", "oidc_client_id", "oidc_client_parameters",
        "oidc_client_scopes", "oidc_groups_claim", "oidc_issuer", "oidc_quotas",
        "oidc_scopes", "oidc_scopes_claim", "oidc_tenant", "oidc_tenant_claim",
        "prefix_mode", "public_url", "reranker_model", "s3_region", "s3_url", "unanswerable_text",
        "vllm_args", "vllm_python", "worker_addresses", "write_tiers",
    }  # fmt: skip
    secret = hidden(all_settings())
    kinds = {name: str(field.annotation) for name, field in all_settings().model_fields.items()}
    text = {name for name, kind in kinds.items() if "str" in kind and "Literal" not in kind}
    assert text - shown - secret == set() == (shown | secret) - text
    settings = load(
        database="postgresql://u:hunter2@db/x", redis_url="redis://u:hunter2@r",
        otlp_endpoint="https://x/?token=hunter2",
        embedder_key="hunter2", reranker_key="hunter2",
    )  # fmt: skip
    told = recorded(settings)
    assert "hunter2" not in json.dumps(told) and told["database"] == IS_SET


def test_entries_are_written_in_one_way() -> None:
    assert written({"b": 1, "a": "ö\ud800"}) == '{"a":"\\u00f6\\ud800","b":1}'
