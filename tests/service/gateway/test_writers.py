"""Documents with writers: whoever may read a document and not change it changes nothing of it, by
any route; and readers are taken away by who may."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from kvstitch.service.cli import main
from tests.service.gateway.rig import Rig, until
from tests.service.gateway.test_permissions import Create, member, open_rig, service_routes

__all__ = ["open_rig"]  # the fixture

Http = httpx.Client
DOCUMENTS = ("shared", "public")
ALL = ("--scope=ingest", "--scope=admin", "--scope=share")


@dataclass
class Team:
    rig: Rig
    create: Create
    people: list[Http] = field(default_factory=list)

    def key(self, *arguments: str, groups: list[str] | None = None) -> Http:
        """Somebody with a key of these groups; without arguments as it is made by default."""
        made = member(self.rig, lambda *named: self.create(*named, *arguments), groups)
        self.people.append(made.http)
        return made.http

    def send(self, who: Http, *documents: dict[str, Any], **query: str) -> dict[str, Any]:
        """The job of documents, when it has ended; or the problem that it is refused with."""
        reply = who.post("/admin/precompute", json={"documents": documents}, params=query)
        if reply.status_code != 202:
            return dict(reply.json())
        return self.rig.finished(reply.json()["job_id"])

    def document(self, doc_id: str) -> dict[str, Any]:
        return dict(self.rig.http.get(f"/admin/documents/{doc_id}").json())

    @property
    def state(self) -> Any:
        """Everything that is stored, as who may read it sees it."""
        listed = self.rig.http.get("/admin/documents").json()["documents"]
        source = self.rig.http.get("/admin/sources/desk").json()
        return [self.document(each["doc_id"]) for each in listed], source


@pytest.fixture
def team(open_rig: Callable[..., Rig], create: Create) -> Iterator[Team]:
    made = Team(open_rig(), create)
    yield made
    for http in made.people:
        http.close()


def sent(name: str, **more: Any) -> dict[str, Any]:
    return {"doc_id": name, "text": f"# Head\n\nfox {name}", "metadata": {"a": 1}, **more}


def stored(team: Team, who: Http) -> None:
    """Two documents that group `r` may read and `w` may change."""
    documents = sent("shared", readers=["r", "w"]), sent("public")
    team.send(who, *documents, source="desk", writers="w")
    assert [team.document(name)["writers"] for name in DOCUMENTS] == [["w"], ["w"]]


Change = Callable[[Http, str], httpx.Response]


def called(method: str, path: str, body: dict[str, Any] | None = None) -> Change:
    def change(who: Http, name: str) -> httpx.Response:
        named = {"?": name, "[?]": [name]}
        filled = body and {k: named.get(str(v), v) for k, v in body.items()}
        return who.request(method, path.format(name), json=filled)

    return change


def sent_again(**more: Any) -> Change:
    def change(who: Http, name: str) -> httpx.Response:
        documents = [sent(name, **more)]
        return who.post("/admin/precompute", json={"documents": documents}, params={"source": "x"})

    return change


# Every route that is not only read. A new one has to be entered here: with what somebody tries on
# a document that they may read and not change, or with why it changes nothing of documents.
CHANGES: dict[str, list[Change]] = {
    "POST /admin/precompute": [
        sent_again(text="mine now"), sent_again(), sent_again(readers=["r"]),
        sent_again(writers=["*"]), sent_again(title="another", readers=["r", "w"]),
    ],
    "DELETE /admin/documents/{doc_id:path}": [called("DELETE", "/admin/documents/{}")],
    "POST /admin/deletions": [
        called("POST", "/admin/deletions", {"doc_ids": "[?]"}),
        called("POST", "/admin/deletions", {"filter": {"a": 1}}),
    ],
    "DELETE /admin/collections/{collection:path}": [
        called("DELETE", "/admin/collections/default")
    ],
    "PUT /admin/pins/{doc_id:path}": [called("PUT", "/admin/pins/{}")],
    "DELETE /admin/pins/{doc_id:path}": [called("DELETE", "/admin/pins/{}")],
    "POST /admin/renames": [
        called("POST", "/admin/renames", {"doc_id": "?", "new_id": "other"})
    ],
}  # fmt: skip
CHANGES_NO_DOCUMENT = {
    "POST /v1/rag/generate": "asks", "POST /v1/chat/completions": "asks",
    "POST /v1/completions": "asks", "POST /v1/responses": "asks", "POST /v1/search": "asks",
    "POST /v1/rerank": "asks", "POST /v1/embeddings": "asks", "POST /retrieval": "asks",
    "POST /v1/messages": "asks", "POST /v1/messages/count_tokens": "asks",
    "POST /mcp": "its tools read", "DELETE /mcp": "of the sender's own session",
    "POST /admin/gate/reset": "of the whole service",
    "DELETE /admin/jobs/{job_id}": "of what is not stored yet; see below",
}  # fmt: skip


def test_every_route_that_changes_something_is_classified() -> None:
    found = {route for route in service_routes() if not route.startswith("GET ")}
    assert found == CHANGES.keys() | CHANGES_NO_DOCUMENT.keys()


def test_who_may_read_and_not_write_changes_nothing(team: Team) -> None:
    writer = team.key("--writes", "w", *ALL, groups=["r", "w"])
    stored(team, writer)
    before = team.state
    others = [
        (team.key(*ALL, groups=["r"]), DOCUMENTS),
        (team.key("--writes", "r", groups=["r", "w"]), DOCUMENTS),
        (team.key(groups=[]), ("public",)),
        (team.key("--writes", "r"), DOCUMENTS),  # it reads all
    ]
    tried = 0
    for who, names in others:
        for route, changes in CHANGES.items():
            for name in names:
                for change in changes:
                    tried += 1
                    reply = change(who, name)
                    if reply.status_code == 202:
                        done = team.rig.finished(reply.json()["job_id"])
                        assert done["state"] == "failed", (route, done)
                        assert "not change it" in done["errors"][0]["message"]
                    elif reply.status_code == 200:  # of what it may change, which is nothing
                        assert reply.json()["documents"] == 0, route
                    else:
                        assert reply.status_code == 403, reply.text
                        assert reply.json()["code"] == "not_a_writer"
                    assert team.state == before, (route, name)
        assert who.get("/admin/sources/desk").json() == [], "nothing that --prune could remove"
    assert tried == 7 * 12
    # Whoever may, does.
    for changes in list(CHANGES.values())[::-1]:
        stored(team, writer)
        for change in changes:
            reply = change(writer, "public")
            if reply.status_code == 202:
                assert team.rig.finished(reply.json()["job_id"])["state"] == "succeeded"
            assert reply.is_success, reply.text
            stored(team, writer)


def test_readers_are_taken_away_by_who_may(team: Team) -> None:
    """The way in which a group once took a document from another."""
    hr, both = team.key(groups=["hr"]), team.key(groups=["hr", "legal"])
    shared = sent("d", readers=["hr", "legal"])
    assert team.send(both, shared)["changes"] == {"created": 1}
    assert "'share'" in team.send(hr, {**shared, "readers": ["hr"]})["errors"][0]["message"]
    for change in ({"writers": ["hr"]}, {"writers": ["hr"], "text": "mine"}):
        assert "'share'" in team.send(hr, {**shared, **change})["detail"]
    # Who is there may stay, although the sender is none of them; and nobody else may come.
    assert team.send(hr, {**shared, "text": "fox"})["changes"] == {"updated": 1}
    assert team.document("d")["readers"] == team.document("d")["writers"] == ["hr", "legal"]
    refused = team.send(hr, {**shared, "readers": ["hr", "legal", "board"]})
    assert refused["status"] == 403 and "board" in refused["detail"]
    refused = team.send(hr, {**shared, "writers": ["board"]})
    assert refused["status"] == 403 and refused["code"] == "not_a_writer"
    # For everybody is for more.
    assert team.send(hr, {**shared, "readers": []})["changes"] == {"updated": 1}
    assert "'share'" in team.send(hr, {**shared, "readers": ["hr"]})["errors"][0]["message"]
    may = team.key("--scope=ingest", "--scope=share", groups=["hr"])
    assert team.send(may, {**shared, "readers": ["hr"]})["changes"] == {"updated": 1}
    assert team.document("d")["readers"] == ["hr"]


def test_writers_are_those_of_the_sender_and_stay(team: Team) -> None:
    nobody, hr, rest = team.key(groups=[]), team.key(groups=["hr"]), team.key()
    for name, who, writers in (
        ("a", nobody, ["*"]), ("b", hr, ["hr"]), ("c", team.rig.http, []), ("d", rest, []),
    ):  # fmt: skip
        team.send(who, sent(name))
        assert team.document(name)["writers"] == writers
        team.send(team.rig.http, sent(name, text="another fox"))
        assert team.document(name)["writers"] == writers, "as they were"
    job = team.send(team.rig.http, sent("b", text="another fox", writers=["*"]))
    assert job["changes"] == {"updated": 1}, "others may stand before it now"
    assert team.document("b")["writers"] == ["*"]
    assert team.send(nobody, sent("b", text="mine"))["changes"] == {"updated": 1}


def test_a_job_is_cancelled_by_those_who_write_for_its_sender(team: Team) -> None:
    writer, reader = team.key("--writes", "w", groups=["r", "w"]), team.key(groups=["r"])
    team.rig.call(team.rig.gateway.corpus.ingestion.indexing.close)  # nobody indexes
    body = {"documents": [sent("d", readers=["r", "w"])]}
    job_id = writer.post("/admin/precompute", json=body).json()["job_id"]
    refused = reader.delete(f"/admin/jobs/{job_id}")
    assert refused.status_code == 403 and refused.json()["code"] == "not_a_writer"
    assert reader.delete("/admin/documents/d").status_code == 404, "it is not stored"
    assert reader.delete("/admin/collections/default").json()["documents"] == 0
    assert reader.get(f"/admin/jobs/{job_id}").json()["state"] == "queued"
    assert writer.delete(f"/admin/jobs/{job_id}").json()["state"] == "cancelled"


def test_a_key_writes_for_groups_that_it_belongs_to(
    team: Team, capsys: pytest.CaptureFixture[str], data: Any
) -> None:
    assert main(["keys", "create", "--data-dir", str(data), "--group", "a", "--writes", "b"]) == 2
    assert "belongs to" in capsys.readouterr().err


def test_documents_of_two_jobs_are_each_of_their_senders(team: Team) -> None:
    """In one batch a document is stored as who sent it may."""
    writer, reader = team.key(groups=["w"]), team.key(groups=["r"])
    team.send(writer, sent("mine"))
    indexing = team.rig.gateway.corpus.ingestion.indexing

    async def start() -> None:
        indexing.start()

    team.rig.call(indexing.close)
    jobs = [
        who.post("/admin/precompute", json={"documents": documents}).json()["job_id"]
        for who, documents in (
            (reader, [sent("mine", text="taken"), sent("yours")]),
            (writer, [sent("other")]),
        )
    ]
    team.rig.call(start)
    done = [team.rig.finished(job_id) for job_id in jobs]
    assert [each["state"] for each in done] == ["failed", "succeeded"]
    assert until(lambda: team.document("yours").get("writers"), "stored") == ["r"]
    assert team.document("mine")["text"] == sent("mine")["text"]
