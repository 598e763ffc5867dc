"""With a master key no disk and no server holds a byte of KV that can be read."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis

from kvstitch.kvstore import SsdTier, TieredStore
from tests import preloaded
from tests.e2e.conftest import Documents
from tests.e2e.service import HANG_S, Service, tiers
from tests.redis_server import redis_server

QUESTION = "Where does the unmistakablezebra keep its wintercoat?"


def key_file(folder: Path, name: str = "master.key") -> Path:
    path = folder / name
    path.write_text(os.urandom(32).hex())
    return path


def held_by_folder(folder: Path) -> bytes:
    return b"\n".join(
        path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()
    )  # fmt: skip


def held_by_redis(url: str) -> bytes:
    with redis.Redis.from_url(url) as client:
        names = list(client.scan_iter(count=1000))
        assert names
        dumps: list[bytes] = []
        for name in names:
            if client.type(name) == b"hash":
                dumps += [b for pair in client.hgetall(name).items() for b in pair]
            else:
                dumps.append(client.get(name) or b"")
        return b"\n".join([*names, *dumps])


def kv_pieces(folder: Path) -> Iterator[bytes]:
    """Runs of 32 bytes from all chunks of an SSD tier that is in the clear."""
    with TieredStore([SsdTier(folder, 1 << 34)]) as store:
        for key in sorted(store.keys()):
            chunk = store.read(key).chunk
            assert chunk is not None and chunk.header.seal is None
            raw = chunk.data.numpy().tobytes()
            for at in range(1024, len(raw) - 32, len(raw) // 9):
                if len(set(raw[at : at + 32])) > 16:
                    yield raw[at : at + 32]


def renamed(documents: Documents) -> Documents:
    """Under short names."""
    return [{**d, "doc_id": f"d{n}"} for n, d in enumerate(documents)]


def test_no_stored_kv_is_readable_anywhere(tmp_path: Path, model: Path, twelve: Documents) -> None:
    answers: dict[str, str] = {}
    places: dict[str, dict[str, bytes]] = {}
    with redis_server() as far:
        for number, (name, more) in enumerate(
            {"sealed": {"encryption_key_file": key_file(tmp_path)}, "clear": {}}.items()
        ):
            redis_url = f"{far.url}/{number}"
            with Service(
                model, tmp_path / name, sketches=True, redis_url=redis_url, **more
            ) as service:  # fmt: skip
                service.ingest(renamed(twelve[:3]))
                fields = {"documents": ["d0", "d1"], "max_tokens": 6, "fusion": {"method": "pie"}}
                answers[name] = service.ask(QUESTION, **fields)["text"]
                service.until(lambda: service.wrote("redis", 3), "no chunk reaches Redis")
                service.settled_metrics()
            places[name] = {
                "disk": held_by_folder(tmp_path / name / "kv"),
                "redis": held_by_redis(redis_url),
            }
    assert answers["sealed"] == answers["clear"]
    kv = list(kv_pieces(tmp_path / "clear" / "kv"))
    assert len(kv) > 20
    for place, held in places["clear"].items():  # the search finds it where it is
        assert len([piece for piece in kv if piece in held]) > 10, place
    for place, held in places["sealed"].items():
        assert len(held) > 10_000, place
        assert not [piece for piece in kv if piece in held], place


@pytest.mark.slow
def test_it_serves_after_a_restart_and_not_with_another_key(
    tmp_path: Path, model: Path, twelve: Documents
) -> None:
    documents = renamed(twelve[:2])
    key, other = key_file(tmp_path), key_file(tmp_path, "other.key")
    data = tmp_path / "data"
    fields = {"documents": ["d0", "d1"], "top_k": 2, "max_tokens": 6, "fusion": {"method": "pie"}}
    with Service(model, data, encryption_key_file=key, memory_tier_mib=0) as service:
        service.ingest(documents)
        before = service.ask(QUESTION, **fields)
        assert tiers(before) == ["ssd"] * 2
        service.kill_nine()
        service.start()
        after = service.ask(QUESTION, **fields)
        assert after["text"] == before["text"] and tiers(after) == ["ssd"] * 2
        assert service.http.get("/admin/documents/d0").json()["text"] == documents[0]["text"]
        service.kill_nine()
    for settings, said in (
        ({"encryption_key_file": other}, "another master key"),
        ({"encryption_key_file": tmp_path / "none"}, "cannot be read"),
        ({}, "no master key is set"),
    ):
        environment = {k: v for k, v in os.environ.items() if not k.startswith("KVSTITCH_")}
        environment |= {f"KVSTITCH_{n.upper()}": str(v) for n, v in settings.items()}
        command = [*preloaded.python(), "-m", "kvstitch.service.cli", "serve",
                   "--model", str(model),
                   "--data-dir", str(data), "--port", "1"]  # fmt: skip
        ended = subprocess.run(
            command,
            capture_output=True,
            text=True,
            env=environment,
            timeout=HANG_S * 2,
            check=False,
        )
        assert ended.returncode != 0 and said in ended.stderr, ended.stderr
    # Nothing was thrown away for want of the key.
    with Service(model, data, encryption_key_file=key, memory_tier_mib=0) as service:
        assert tiers(service.ask(QUESTION, **fields)) == ["ssd"] * 2


@pytest.mark.slow
def test_a_tenants_key_is_deleted_and_rotated(
    tmp_path: Path, model: Path, twelve: Documents
) -> None:
    """By the command line, while the service runs; its documents go with it."""
    data, key = tmp_path / "data", key_file(tmp_path)
    settings = {"encryption_key_file": key, "audit": True, "memory_tier_mib": 0}

    def run(*command: str) -> Any:
        environment = os.environ | {"KVSTITCH_ENCRYPTION_KEY_FILE": str(key), "KVSTITCH_AUDIT": "1"}
        ended = subprocess.run(
            [*preloaded.python(), "-m", "kvstitch.service.cli", *command,
             "--data-dir", str(data), "--json"],
            capture_output=True, text=True, env=environment, timeout=HANG_S, check=False,
        )  # fmt: skip
        assert ended.returncode == 0, ended.stderr
        return json.loads(ended.stdout)

    def client(service: Service, tenant: str) -> httpx.Client:
        made = run("keys", "create", "--tenant", tenant)
        header = {"Authorization": f"Bearer {made['key']}"}
        base = str(service.http.base_url)
        return httpx.Client(base_url=base, headers=header, timeout=HANG_S)

    def ingest(service: Service, sender: httpx.Client, documents: Documents) -> None:
        reply = sender.post("/admin/precompute", json={"documents": documents})
        path = f"/admin/jobs/{reply.json()['job_id']}"
        service.until(lambda: sender.get(path).json()["state"] == "succeeded", "no end", 180.0)

    with Service(model, data, **settings) as service:  # noqa: SIM117
        with client(service, "acme") as acme, client(service, "other") as other:
            service.http.headers["Authorization"] = other.headers["Authorization"]
            for sender in (acme, other):
                ingest(service, sender, renamed(twelve[:2]))
            rotated = run("encryption", "rotate", "--tenant", "acme")
            ingest(service, acme, [{"doc_id": "new", "text": twelve[3]["text"]}])
            assert acme.get("/admin/documents/d0").status_code == 200
            assert acme.get("/admin/documents/new").json()["text"] == twelve[3]["text"]
            receipt = run("encryption", "delete", "--tenant", "acme", "--yes")
            assert receipt["documents"] == 3 and rotated["key_id"] in receipt["key_ids"]
            assert len(receipt["key_ids"]) == 2
            assert acme.get("/admin/documents/d0").status_code == 404
            body = {"question": QUESTION, "max_tokens": 4, "documents": ["d0"]}
            assert acme.post("/v1/rag/generate", json=body).status_code in (404, 422)
            shown = other.get("/admin/documents/d0")
            assert shown.status_code == 200 and shown.json()["text"] == twelve[0]["text"]
            assert other.post("/v1/rag/generate", json=body).status_code == 200
            # A key that is made anew is another one, and the tenant can be served again.
            service.until(
                lambda: not [k for k in run("encryption", "keys") if k["tenant"] == "acme"],
                "a deleted key is there",
            )
            ingest(service, acme, renamed(twelve[:1]))
            assert acme.get("/admin/documents/d0").json()["text"] == twelve[0]["text"]
    made = {k["key_id"] for k in run("encryption", "keys") if k["tenant"] == "acme"}
    assert len(made) == 1 and not made & set(receipt["key_ids"])
    actions = [e["action"] for e in _audit(data) if e["action"].endswith("_keys")]
    assert "delete_keys" in actions


def _audit(data: Path) -> list[dict[str, Any]]:
    environment = os.environ | {"KVSTITCH_AUDIT": "1"}
    command = [
        *preloaded.python(),
        "-m",
        "kvstitch.service.cli",
        "audit",
        "export",
        "--data-dir",
        str(data),
    ]
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    return [json.loads(line) for line in ended.stdout.splitlines() if "action" in line]
