"""Documents with readers: what a key may not read is in nothing that it is answered, by any route,
and in nothing that the KV of what it may read has seen."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from itertools import combinations
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import httpx
import pytest
from fastapi.routing import APIRoute

import kvstitch.service.gateway.http.routes
from kvstitch.retriever.scope import View
from kvstitch.service.messages.requests import Generate, Precompute, Purge
from tests.fakes.issuer import AUDIENCE, Issuer, issuing
from tests.fakes.worker import FakeWorker
from tests.service.gateway.model_folders import byte_tokenizer
from tests.service.gateway.rig import Rig, running, until
from tests_mcp.calls import mcp_call

GROUPS = ("hr", "legal", "sales", "board", "größe")
TOPICS = ("fox forest hunts", "whale sea sings", "bread oven flour")
Create = Callable[..., str]


@dataclass
class Member:
    """Somebody with a key."""

    http: httpx.Client
    view: View

    def hidden(self, documents: Sequence[Secret]) -> list[Secret]:
        return [each for each in documents if not self.view.shows(",".join(sorted(each.readers)))]


@dataclass
class Secret:
    """A document whose words are nowhere else."""

    number: int
    readers: list[str]
    collection: str = "default"
    suffix: str = ""

    @property
    def doc_id(self) -> str:
        return f"name{self.number}x{self.suffix}"

    @property
    def words(self) -> list[str]:
        return [f"{kind}{self.number}x" for kind in ("name", "title", "secret", "meta", "heading")]

    @property
    def sent(self) -> dict[str, Any]:
        _, title, secret, meta, heading = self.words
        topic = TOPICS[self.number % len(TOPICS)]
        return {
            "doc_id": self.doc_id, "title": title, "collection": self.collection,
            "text": f"# {heading}\n\n{topic} {secret} zzz{self.number % 7}",
            "metadata": {"word": meta, "url": f"https://a.com/{meta}", "even": self.number % 2},
            "readers": self.readers,
        }  # fmt: skip


@dataclass
class World:
    rig: Rig
    members: list[Member]
    documents: list[Secret]
    jobs: list[str]
    receipts: list[str] = field(default_factory=list)


def member(rig: Rig, create: Create, groups: Sequence[str] | None) -> Member:
    named = [part for group in groups or () for part in ("--group", group)]
    key = create(*(named or (["--all-groups"] if groups is None else ["--no-groups"])))
    http = httpx.Client(
        base_url=rig.url, timeout=30, verify=False, headers={"Authorization": f"Bearer {key}"}
    )
    return Member(http, View(None if groups is None else frozenset(groups)))


@pytest.fixture
def open_rig(folder: Path, data: Path, create: Create) -> Iterator[Callable[..., Rig]]:
    """open_rig(prefix_mode="primer"): a service with keys; its own client reads everything."""
    opened: list[Any] = []
    key = create()

    def open_one(**settings: Any) -> Rig:
        manager = running(folder, data, **settings)
        rig = manager.__enter__()
        opened.append(manager)
        rig.http.headers["Authorization"] = f"Bearer {key}"
        return rig

    yield open_one
    for manager in opened:
        manager.__exit__(None, None, None)


def bearer(rig: Rig, issuer: Issuer, groups: Sequence[str] | None) -> Member:
    """Somebody with a token, whose groups are claims of it."""
    claimed = ["everything"] if groups is None else list(groups)
    token = issuer.token(sub=f"of {claimed}", groups=claimed)
    http = httpx.Client(
        base_url=rig.url, timeout=30, verify=False, headers={"Authorization": f"Bearer {token}"}
    )
    return Member(http, View(None if groups is None else frozenset(groups)))


@pytest.fixture(params=["keys", pytest.param("tokens", marks=pytest.mark.slow)])
def world(
    open_rig: Callable[..., Rig], create: Create, request: pytest.FixtureRequest
) -> Iterator[World]:
    """Documents of random readers in two collections, sent by who may."""
    rng = random.Random(4)
    with issuing() as issuer:
        tokens = {"oidc_issuer": issuer.name, "oidc_audience": AUDIENCE,
                  "oidc_all_groups": "everything"}  # fmt: skip
        by_tokens = request.param == "tokens"
        rig = open_rig(
            prefix_mode="primer", companions=2, primers=1, **(tokens if by_tokens else {})
        )
        yield from made_world(
            rig,
            rng,
            lambda groups: (
                bearer(rig, issuer, groups) if by_tokens else member(rig, create, groups)
            ),
        )


def made_world(
    rig: Rig, rng: random.Random, new_member: Callable[[Sequence[str] | None], Member]
) -> Iterator[World]:
    subsets = [list(some) for size in range(3) for some in combinations(GROUPS, size)]
    wanted: list[list[str] | None] = [None, [], *rng.sample(subsets[1:], 3)]
    members = [new_member(groups) for groups in wanted]
    documents = [
        Secret(number, rng.choice(subsets), rng.choice(["default", "default", "second"]),
               rng.choice(["", "", "/text", ".md"]))
        for number in range(80)
    ]  # fmt: skip
    jobs = []
    for start in range(0, len(documents), 20):
        part = [each.sent for each in documents[start : start + 20]]
        jobs.append(rig.ingest(part, source="world")["job_id"])
    # One that fails, of some.
    for number, readers in enumerate(rng.sample(subsets, 6), 1000):
        failing = Secret(number, readers)
        documents.append(failing)
        job = rig.ingest([{**failing.sent, "text": " "}])
        assert job["state"] == "failed" and job["errors"][0]["doc_id"] == failing.doc_id
        jobs.append(job["job_id"])
    yield World(rig, members, documents, jobs)
    for each in members:
        each.http.close()


Calls = Callable[[World, Member, random.Random], Iterator[httpx.Response]]


def some(world: World, rng: random.Random, count: int = 4) -> list[Secret]:
    return rng.sample(world.documents, count)


def questions(world: World, rng: random.Random) -> Iterator[dict[str, Any]]:
    """Questions that name the secrets of others, in all ways of searching."""
    for number, each in enumerate(some(world, rng)):
        text = rng.choice(
            [f'"{each.words[2]}"', " ".join(each.words), TOPICS[0], f"zzz{number % 7}"]
        )
        yield {
            "text": text, "collection": each.collection, "top_k": rng.choice([3, 20]),
            "retrieval": rng.choice(["dense", "sparse", "hybrid"]),
            **rng.choice([{}, {}, {"filter": {"word": each.words[3]}},
                          {"filter": {"even": {"ne": 5}}}, {"documents": [each.doc_id]}]),
        }  # fmt: skip


def generate(world: World, who: Member, rng: random.Random) -> Iterator[httpx.Response]:
    for asked in questions(world, rng):
        body = {"question": asked.pop("text"), "include_text": True, **asked}
        yield who.http.post("/v1/rag/generate", json={**body, "explain": rng.random() < 0.3})
        yield who.http.post("/v1/rag/generate", json={**body, "stream": True})


def chat(path: str, field_name: str) -> Calls:
    def calls(world: World, who: Member, rng: random.Random) -> Iterator[httpx.Response]:
        for asked in questions(world, rng):
            text = asked.pop("text")
            said: Any = [{"role": "user", "content": text}] if field_name == "messages" else text
            yield who.http.post(path, json={field_name: said, "kvstitch": asked})

    return calls


def search(world: World, who: Member, rng: random.Random) -> Iterator[httpx.Response]:
    for asked in questions(world, rng):
        yield who.http.post("/v1/search", json={"query": asked.pop("text"), **asked})


def retrieval(world: World, who: Member, rng: random.Random) -> Iterator[httpx.Response]:
    """As Dify asks."""
    for asked in questions(world, rng):
        for threshold in (0.0, 0.01):
            body = {
                "knowledge_id": asked["collection"],
                "query": asked["text"],
                "retrieval_setting": {"top_k": asked["top_k"], "score_threshold": threshold},
            }
            yield who.http.post("/retrieval", json=body)


def listing(world: World, who: Member, rng: random.Random) -> Iterator[httpx.Response]:
    for collection in ("default", "second"):
        cursor: str | None = None
        for _ in range(9):
            params = {
                "collection": collection,
                "limit": "30",
                **({"cursor": cursor} if cursor else {}),
            }
            reply = who.http.get("/admin/documents", params=params)
            yield reply
            if (cursor := reply.json()["next_cursor"]) is None:
                break
    for each in some(world, rng):
        yield who.http.get("/admin/documents", params={"q": each.words[0]})
        yield who.http.get(
            "/admin/documents", params={"filter": json.dumps({"word": each.words[3]})}
        )


def by_name(method: str, path: str) -> Calls:
    def calls(world: World, who: Member, rng: random.Random) -> Iterator[httpx.Response]:
        for each in some(world, rng):
            reply = who.http.request(
                method, path.format(each.doc_id), params={"collection": each.collection}
            )
            if each in who.hidden([each]):
                assert reply.status_code == 404, "as what does not exist"
                name = f"nothing{each.suffix}"
                nothing = who.http.request(
                    method, path.format(name), params={"collection": each.collection}
                )
                assert nothing.text.replace("nothing", each.words[0]) == reply.text
            else:
                yield reply

    return calls


def jobs(world: World, who: Member, rng: random.Random) -> Iterator[httpx.Response]:
    yield who.http.get("/admin/jobs", params={"limit": "100"})


def job(method: str) -> Calls:
    def calls(world: World, who: Member, rng: random.Random) -> Iterator[httpx.Response]:
        for job_id in world.jobs:
            yield who.http.request(method, f"/admin/jobs/{job_id}")

    return calls


def overwrite(world: World, who: Member, rng: random.Random) -> Iterator[httpx.Response]:
    """Documents that they may not read stay what they are."""
    hidden = who.hidden([d for d in world.documents if d.number < 1000])[:4]
    body = {"documents": [{"doc_id": d.doc_id, "text": "mine now", "collection": d.collection}
                          for d in hidden]}  # fmt: skip
    if hidden:
        sent = who.http.post("/admin/precompute", json=body)
        assert sent.status_code == 202
        done = world.rig.finished(sent.json()["job_id"])
        assert done["state"] == "failed" and len(done["errors"]) == len(hidden)
        assert all("taken" in error["message"] for error in done["errors"])
        for each in hidden:
            there = world.rig.http.get(
                f"/admin/documents/{each.doc_id}", params={"collection": each.collection}
            )
            assert each.words[2] in there.json()["text"]
    if who.view.groups is not None and (others := set(GROUPS) - who.view.groups):
        refused = who.http.post(
            "/admin/precompute",
            json={"documents": [{"doc_id": "new", "text": "x", "readers": [min(others)]}]},
        )
        assert refused.status_code == 403 and min(others) in refused.text
    yield who.http.get("/admin/collections")


def delete_many(world: World, who: Member, rng: random.Random) -> Iterator[httpx.Response]:
    hidden = who.hidden([d for d in world.documents if d.number < 1000])[:20]
    for collection in ("default", "second"):
        names = [each.doc_id for each in hidden if each.collection == collection] or ["nothing"]
        reply = who.http.post("/admin/deletions", json={"doc_ids": names, "collection": collection})
        assert reply.json()["documents"] == 0
        words = [each.words[3] for each in hidden if each.collection == collection]
        where = {"word": {"in": words or ["nothing"]}}
        reply = who.http.post("/admin/deletions", json={"filter": where, "collection": collection})
        assert reply.json()["documents"] == 0
        yield reply


def rename(world: World, who: Member, rng: random.Random) -> Iterator[httpx.Response]:
    for each in some(world, rng):
        there, other = each.doc_id, f"another-{each.doc_id}"
        for old, new in ((there, other), (other, there)):
            body = {"doc_id": old, "new_id": new, "collection": each.collection}
            reply = who.http.post("/admin/renames", json=body)
            if each not in who.hidden([each]):
                yield reply
            else:
                assert reply.status_code == 404, "as what does not exist"


def receipt(world: World, who: Member, rng: random.Random) -> Iterator[httpx.Response]:
    for receipt_id in world.receipts:
        yield who.http.get(f"/admin/receipts/{receipt_id}")


def tools(world: World, who: Member, rng: random.Random) -> Iterator[httpx.Response]:
    def call(tool: str, **arguments: Any) -> httpx.Response:
        return who.http.post("/mcp", **mcp_call(tool, arguments))

    for asked in questions(world, rng):
        text = asked.pop("text")
        del asked["retrieval"]
        yield call("search", query=text, **asked)
        yield call("ask", question=text, **asked)
    for collection in ("default", "second"):
        yield call("documents", collection=collection, limit=1000)
    for each in some(world, rng):
        yield call("documents", named=each.words[0], collection=each.collection)
        yield call("documents", filter={"word": each.words[3]}, collection=each.collection)
        found = call("documents", doc_id=each.doc_id, collection=each.collection)
        if each in who.hidden([each]):
            nothing = call("documents", doc_id=f"nothing{each.suffix}", collection=each.collection)
            assert found.json()["result"]["isError"], "as what does not exist"
            assert nothing.text.replace("nothing", each.words[0]) == found.text
        else:
            yield found


def get(path: str) -> Calls:
    def calls(world: World, who: Member, rng: random.Random) -> Iterator[httpx.Response]:
        yield who.http.get(path)

    return calls


# Every route of the service. A new one has to be entered here: with calls that try to get at what
# the sender may not read, or among those that output nothing of documents.
CALLS: dict[str, Calls] = {
    "POST /v1/rag/generate": generate,
    "POST /v1/chat/completions": chat("/v1/chat/completions", "messages"),
    "POST /v1/completions": chat("/v1/completions", "prompt"),
    "POST /v1/responses": chat("/v1/responses", "input"),
    "POST /v1/messages": chat("/v1/messages", "messages"),
    "POST /v1/messages/count_tokens": chat("/v1/messages/count_tokens", "messages"),
    "POST /v1/search": search,
    "GET /admin/documents": listing,
    "GET /admin/documents/{doc_id:path}": by_name("GET", "/admin/documents/{}"),
    "GET /admin/documents/{doc_id:path}/text": by_name("GET", "/admin/documents/{}/text"),
    "PUT /admin/pins/{doc_id:path}": by_name("PUT", "/admin/pins/{}"),
    "DELETE /admin/pins/{doc_id:path}": by_name("DELETE", "/admin/pins/{}"),
    "GET /admin/collections": get("/admin/collections"),
    "GET /admin/jobs": jobs,
    "GET /admin/jobs/{job_id}": job("GET"),
    "DELETE /admin/jobs/{job_id}": job("DELETE"),
    "POST /admin/precompute": overwrite,
    "POST /admin/deletions": delete_many,
    "POST /admin/renames": rename,
    "GET /admin/sources/{source}": get("/admin/sources/world"),
    "POST /retrieval": retrieval,
    "POST /mcp": tools,
    "GET /metrics": get("/metrics"),
    "GET /status": get("/status"),
}
AT_THE_END: dict[str, Calls] = {
    "DELETE /admin/documents/{doc_id:path}": by_name("DELETE", "/admin/documents/{}"),
    "DELETE /admin/collections/{collection:path}": lambda world, who, rng: iter(
        [who.http.delete("/admin/collections/second")]
    ),
    "GET /admin/receipts/{receipt_id}": receipt,
}
NOTHING_OF_DOCUMENTS = {
    "POST /v1/rerank", "POST /v1/embeddings", "GET /v1/models", "GET /v1/models/{model_id:path}",
    "GET /v1/methods", "GET /admin/gate", "DELETE /mcp", "POST /admin/gate/reset", "GET /health",
    "GET /health/live", "GET /health/ready", "GET /", "GET /docs",
}  # fmt: skip


def service_routes() -> set[str]:
    """All routes, as `GET /status`."""
    found = {
        "POST /retrieval",
        "POST /mcp",
        "DELETE /mcp",
        "POST /v1/messages",
        "POST /v1/messages/count_tokens",
    }  # of plugins
    for module in iter_modules(kvstitch.service.gateway.http.routes.__path__):
        router = import_module(f"kvstitch.service.gateway.http.routes.{module.name}").router
        for route in router.routes:
            assert isinstance(route, APIRoute)
            found |= {f"{method} {route.path}" for method in route.methods or ()}
    return found


def test_every_route_is_classified() -> None:
    assert service_routes() == CALLS.keys() | AT_THE_END.keys() | NOTHING_OF_DOCUMENTS


def test_no_route_tells_anything_of_what_a_key_may_not_read(world: World) -> None:
    rng = random.Random(7)
    fake = world.rig.worker
    assert fake is not None
    tokenizer = byte_tokenizer()
    replies = found = 0

    def check(who: Member, calls: Calls, route: str) -> None:
        nonlocal replies, found
        before = len(fake.received)
        hidden = [w for each in who.hidden(world.documents) for w in each.words]
        shown = [w for d in world.documents if d not in who.hidden([d]) for w in d.words]
        for reply in calls(world, who, rng):
            replies += 1
            asked = reply.request.content.decode() + str(reply.request.url)
            leaked = [w for w in hidden if w in reply.text and w not in asked]
            assert not leaked, f"{route} {who.view}: {leaked} in {reply.text}"
            found += any(word in reply.text for word in shown)
            if reply.request.method != "GET" and "receipt_id" in reply.text:
                world.receipts.append(reply.json()["receipt_id"])
        for message in fake.received[before:]:
            if isinstance(message, Generate):
                texts = [tokenizer.decode(c.ids) for c in message.documents]
                assert not [w for w in hidden for text in texts if w in text]

    for route, calls in CALLS.items():
        for who in world.members:
            check(who, calls, route)
    assert found > 60 and replies > 250, "the keys do see what they may read"
    for route, calls in AT_THE_END.items():
        for who in reversed(world.members):
            check(who, calls, route)
    # What was deleted by keys of few groups was theirs: all of the others' documents are there.
    left = [
        d for d in world.documents if d.number < 1000 and d.readers and d.collection == "second"
    ]
    assert len(world.receipts) > 10 and left


def test_readers_change_under_load(open_rig: Callable[..., Rig], create: Create) -> None:
    """Whoever asks gets what they may read at that moment, or what they could a moment before."""
    rig = open_rig(prefix_mode="primer", companions=2, primers=1)
    hr, legal = member(rig, create, ["hr"]), member(rig, create, ["legal"])
    documents = [Secret(number, ["hr"]) for number in range(6)]
    rig.ingest([each.sent for each in documents])
    stop = threading.Event()
    failures: list[str] = []
    # Nobody of legal may ever see it, whatever the others do to it.
    never = Secret(77, ["hr"])
    rig.ingest([never.sent])

    def ask(who: Member, hidden: Sequence[Secret]) -> None:
        rng = random.Random(1)
        with httpx.Client(
            base_url=rig.url, timeout=30, verify=False, headers=who.http.headers
        ) as http:
            while not stop.is_set():
                each = rng.choice([*documents, never])
                body = {
                    "query": f'"{each.words[2]}" {TOPICS[0]}',
                    "retrieval": "hybrid",
                    "top_k": 20,
                }
                found = http.post("/v1/search", json=body)
                listed = http.get("/admin/documents")
                text = found.text + listed.text
                failures.extend(w for d in hidden for w in d.words if w in text)

    threads = [threading.Thread(target=ask, args=(legal, [never])),
               threading.Thread(target=ask, args=(hr, []))]  # fmt: skip
    for thread in threads:
        thread.start()
    try:
        for readers in (["legal"], [], ["hr"]):
            changed = [{**each.sent, "readers": readers} for each in documents]
            assert rig.ingest(changed)["changes"] == {"updated": len(documents)}
            if readers:  # from the receipt on
                other = hr if readers == ["legal"] else legal
                text = other.http.post("/v1/search", json={"query": TOPICS[0], "top_k": 20}).text
                text += other.http.get("/admin/documents").text
                assert not [w for d in documents for w in d.words if w in text]
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        hr.http.close()
        legal.http.close()
    assert not failures


@pytest.mark.parametrize("mode", ["system", "primer", "neighbours"])
def test_no_chunk_is_computed_behind_what_its_readers_may_not_read(
    open_rig: Callable[..., Rig], mode: str
) -> None:
    """What is extracted from KV must be in it: what the worker is asked to compute a chunk behind,
    and what the catalog remembers, is text that every reader of the chunk may read; also after
    documents have got other readers."""
    rig = open_rig(prefix_mode=mode, companions=2, primers=2)
    rng = random.Random(3)
    subsets: list[list[str]] = [[], ["hr"], ["legal"], ["hr", "legal"]]
    documents = [Secret(number, rng.choice(subsets)) for number in range(60)]
    rig.ingest([each.sent for each in documents])
    settled(rig)
    check_kv(rig, documents)
    for each in rng.sample(documents, 20):
        each.readers = rng.choice(subsets)
    rig.ingest([each.sent for each in documents])
    settled(rig)
    check_kv(rig, documents)
    if mode in ("primer", "neighbours"):
        behind = [c for m in fake(rig).seen(Precompute) if isinstance(m, Precompute)
                  for c in m.documents if c.behind]  # fmt: skip
        assert behind, "chunks do stand behind others"


def fake(rig: Rig) -> FakeWorker:
    assert rig.worker is not None
    return rig.worker


def settled(rig: Rig) -> None:
    until(lambda: rig.http.get("/status").json()["corpus"]["complete"], "all is stored")
    until(lambda: not rig.gateway.corpus.documents._deletions.pending_purges(1), "all is purged")


def check_kv(rig: Rig, documents: Sequence[Secret]) -> None:
    readers = {each.words[2]: frozenset(each.readers) for each in documents}
    decode = byte_tokenizer().decode

    def readers_in(ids: Sequence[int]) -> list[frozenset[str]]:
        text = decode(list(ids))
        return [groups for word, groups in readers.items() if word in text]

    for stored in list(fake(rig).stored):
        *before, own = _segments(stored)
        for groups in readers_in(own):
            for segment in before:
                for seen in readers_in(segment):
                    assert not seen or (groups and groups <= seen), (groups, seen)
    retriever = rig.gateway.retriever.retriever
    for each in documents:
        for chunk in retriever.catalog.chunks_of(each.doc_id):
            for prefixed in retriever.prefix_chunks.prefixed([chunk.chunk_id]):
                for other in (other for prefix in prefixed.prefixes for other in prefix):
                    assert other.readers in ("", chunk.readers)


def _segments(stored: Sequence[int]) -> list[list[int]]:
    """A fake worker's name of a stored chunk: what it stands behind, each closed by -1; itself."""
    out: list[list[int]] = [[]]
    for token in stored:
        if token == -1:
            out.append([])
        else:
            out[-1].append(token)
    return out


def test_prompts_are_shared_by_those_who_may_read_the_same(
    open_rig: Callable[..., Rig], create: Create
) -> None:
    rig = open_rig()
    rig.ingest([{"doc_id": "open", "text": "fox forest hunts"},
                {"doc_id": "closed", "text": "whale sea sings", "readers": ["hr"]}])  # fmt: skip
    people = {
        "hr": member(rig, create, ["hr"]), "twin": member(rig, create, ["hr"]),
        "both": member(rig, create, ["hr", "legal"]), "all": member(rig, create, None),
    }  # fmt: skip
    shared_by: dict[str, dict[str, str]] = {"open": {}, "closed": {}}
    for doc_id, by in shared_by.items():
        for name, who in people.items():
            body = {"question": "what?", "documents": [doc_id], "top_k": 1}
            assert who.http.post("/v1/rag/generate", json=body).status_code == 200
            message = fake(rig).seen(Generate)[-1]
            assert isinstance(message, Generate)
            by[name] = message.sharers
    assert set(shared_by["open"].values()) == {""}, "everybody's, as without readers"
    closed = shared_by["closed"]
    assert closed["hr"] == closed["twin"] and len(set(closed.values())) == 3
    assert "hr" not in closed["hr"], "a name of a view, which tells no group"
    for who in people.values():
        who.http.close()


def test_prompts_go_when_a_document_gets_other_readers(open_rig: Callable[..., Rig]) -> None:
    """Its KV stays, as its text does; what was asked when others could read it does not."""
    rig = open_rig()
    document = {"doc_id": "d", "text": "fox forest hunts"}
    rig.ingest([document])
    [chunk] = rig.gateway.retriever.catalog.chunks_of("d")
    ids = rig.gateway.prompts.segment(chunk)
    rig.ingest([{**document, "metadata": {"a": 1}}])
    settled(rig)
    assert not prompts_purged(rig), "the same readers, the same text"
    rig.ingest([{**document, "readers": ["hr"]}])
    settled(rig)
    assert prompts_purged(rig) == [ids]
    assert not [c for m in fake(rig).seen(Purge) if isinstance(m, Purge) for c in m.documents]


def prompts_purged(rig: Rig) -> list[list[int]]:
    return [ids for m in fake(rig).seen(Purge) if isinstance(m, Purge) for ids in m.prompts]


JSON_LINES = {"Content-Type": "application/x-ndjson"}
SENT: list[dict[str, Any]] = [
    {"json": {"documents": [{"doc_id": "d", "text": "x", "readers": ["b", "a"],
                             "writers": ["w"]}]}},
    {"params": {"readers": "a, b", "writers": "w"},
     "json": {"documents": [{"doc_id": "d", "text": "x"}]}},
    {"params": {"readers": "c", "writers": "v"}, "headers": JSON_LINES,
     "content": b'{"doc_id": "d", "text": "x", "readers": ["a", "b"], "writers": ["w"]}\n'},
    {"params": {"readers": "b,a", "writers": "w", "doc_id": "d"}, "content": b"x",
     "headers": {"Content-Type": "text/plain"}},
    {"data": {"readers": "a,b", "writers": "w"}, "files": {"file": ("d", b"x", "text/plain")}},
    {"params": {"readers": "a,b", "writers": "w"}, "files": {"file": ("d", b"x", "text/plain")}},
]  # fmt: skip


def test_readers_and_writers_come_by_every_way_of_sending(open_rig: Callable[..., Rig]) -> None:
    rig = open_rig()
    for sent in SENT:
        reply = rig.http.post("/admin/precompute", **sent)
        assert reply.status_code == 202, reply.text
        assert rig.finished(reply.json()["job_id"])["state"] == "succeeded"
        stored = rig.http.get("/admin/documents/d").json()
        assert (stored["readers"], stored["writers"]) == (["a", "b"], ["w"]), sent
        assert rig.http.delete("/admin/documents/d").status_code == 200


def test_a_document_may_be_everybody_s_where_all_others_are_not(
    open_rig: Callable[..., Rig],
) -> None:
    rig = open_rig()
    body = {"documents": [{"doc_id": "d", "text": "x", "readers": []}]}
    rig.http.post("/admin/precompute", params={"readers": "c"}, json=body)
    until(lambda: rig.http.get("/admin/documents/d").status_code == 200, "stored")
    assert rig.http.get("/admin/documents/d").json()["readers"] == []


def test_names_that_no_group_can_have(open_rig: Callable[..., Rig]) -> None:
    rig = open_rig()
    for name in ("", " a", "a,b", "*", "x" * 65, "a\nb"):
        body = {"documents": [{"doc_id": "a", "text": "x", "readers": [name]}]}
        refused = rig.http.post("/admin/precompute", json=body)
        assert refused.status_code == 422, refused.text
        assert refused.json()["field"] == "readers", refused.text


def test_a_job_says_nothing_more_of_documents_that_others_have_taken(
    open_rig: Callable[..., Rig], create: Create
) -> None:
    rig = open_rig()
    hr, legal = member(rig, create, ["hr"]), member(rig, create, ["legal"])
    first = legal.http.post(
        "/admin/precompute", json={"documents": [{"doc_id": "d", "text": "   ", "readers": []}]}
    ).json()["job_id"]
    assert rig.finished(first)["errors"]
    assert legal.http.get(f"/admin/jobs/{first}").json()["errors"]
    sent = {"documents": [{"doc_id": "d", "text": "now of hr", "readers": ["hr"]}]}
    taken = hr.http.post("/admin/precompute", json=sent).json()["job_id"]
    assert rig.finished(taken)["state"] == "succeeded"
    told = legal.http.get(f"/admin/jobs/{first}").json()["errors"]
    assert [one["doc_id"] for one in told] == [""], "that it failed, and nothing of which"
    assert hr.http.get(f"/admin/jobs/{first}").json()["errors"]
    assert legal.http.get(f"/admin/jobs/{taken}").status_code == 404
    ids = [job["job_id"] for job in legal.http.get("/admin/jobs").json()["jobs"]]
    assert ids == [first]
    for who in (hr, legal):
        who.http.close()


def test_a_document_that_waits_is_deleted_by_its_readers_only(
    open_rig: Callable[..., Rig], create: Create
) -> None:
    rig = open_rig()
    hr, legal = member(rig, create, ["hr"]), member(rig, create, ["legal"])
    rig.call(rig.gateway.corpus.ingestion.indexing.close)  # nobody indexes
    sent = {"documents": [{"doc_id": "d", "text": "of hr", "readers": ["hr"]}]}
    job_id = hr.http.post("/admin/precompute", json=sent).json()["job_id"]
    assert legal.http.delete("/admin/documents/d").status_code == 404
    assert legal.http.delete("/admin/collections/default").json()["documents"] == 0
    assert hr.http.get(f"/admin/jobs/{job_id}").json()["state"] == "queued"
    deleted = hr.http.delete("/admin/documents/d").json()
    assert deleted["doc_ids"] == ["d"]
    assert legal.http.get(f"/admin/receipts/{deleted['receipt_id']}").status_code == 404
    assert hr.http.get(f"/admin/receipts/{deleted['receipt_id']}").status_code == 200
    for who in (hr, legal):
        who.http.close()
