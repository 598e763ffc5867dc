"""`kvstitch bulk` on a local Ray: an actor is killed, and a gateway that runs sees the result."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.fleet.hashing_endpoint import hashing_endpoint
from kvstitch.service.settings import load
from kvstitch_ray.bulk.actor import RangeActor
from kvstitch_ray.bulk.range_table import RangeTable
from kvstitch_ray.bulk.ranges import cut
from kvstitch_ray.bulk.records import Run
from kvstitch_ray.bulk.sources import source
from tests.e2e.conftest import Documents
from tests.e2e.service import Service, tiers
from tests.redis_server import RedisServer, redis_server

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="needs the extra `ray`"
)

END_S = 300.0
COMMAND = """
import dataclasses, json, sys
from kvstitch_ray.bulk.records import Order
from kvstitch_ray.bulk.run import ingest
from kvstitch.service.settings import load
order = Order(sys.argv[1], range_documents=8, workers=2)
outcome = ingest(load(threads=1), order)
print(json.dumps({**outcome.progress.as_json(), "errors": outcome.errors}))
"""


def commands(redis: RedisServer) -> tuple[int, int]:
    """Values that Redis holds, and SETs that it was sent."""
    from redis import Redis

    with Redis.from_url(redis.url) as client:
        stats: Any = client.info("commandstats")
        return int(client.dbsize()), int(stats["cmdstat_set"]["calls"])


def killed_actor(url: str, process: subprocess.Popen[str]) -> int:
    """Kill the process of an actor that has a range and has not done it; its pid."""
    import psycopg

    query = "SELECT owner FROM kvstitch_bulk.ranges WHERE state = 'claimed' LIMIT 1"
    with psycopg.connect(url, autocommit=True) as connection:

        def owner() -> str:
            with contextlib.suppress(psycopg.Error):
                row = connection.execute(query).fetchone()
                return "" if row is None else str(row[0])
            return ""

        until(lambda: bool(owner()) or process.poll() is not None)
        assert process.poll() is None, process.stderr and process.stderr.read()
        pid = int(owner().split(":")[1])
    os.kill(pid, signal.SIGKILL)
    return pid


def until(true: Callable[[], bool]) -> None:
    give_up_at = time.monotonic() + END_S
    while not true():
        assert time.monotonic() < give_up_at
        time.sleep(0.1)


@pytest.mark.slow
def test_chunks_behind_primers_are_what_a_gateway_asks_for(
    tmp_path: Path, model: Path, corpus: Documents, postgresql_url: str
) -> None:
    """A folder, an actor with a real worker, and then a gateway that has nothing to compute."""
    documents = corpus[:40]
    folder = tmp_path / "documents"
    folder.mkdir()
    for document in documents:
        (folder / f"{document['doc_id']}.txt").write_text(document["text"])
    run = Run("run", str(folder), "", "default")
    with redis_server() as redis, hashing_endpoint() as embedder:
        place = {
            "database": postgresql_url,
            "redis_url": redis.patient_url,
            "embedder_url": embedder,
            "embedder": "hashing",
            "prefix_mode": "primer",
            "ssd_tier_gib": 0,
        }
        table = RangeTable(postgresql_url)
        table.start()
        table.begin(run)
        cut(source(run.input), table, run.run_id, 256)
        settings = load(model=str(model), data_dir=tmp_path / "bulk", threads=1, **place)
        actor = RangeActor(settings.model_dump(mode="json"), run)
        try:
            said = [actor({"number": [number]}) for number in table.free(run.run_id)]
        finally:
            actor.close()
            table.close()
        assert [each["outcome"] for each in said] == [["done"]]
        values, sets = commands(redis)
        assert sets == values, "a key was put twice"
        with Service(model, tmp_path / "gateway", **place) as gateway:
            gateway.until(
                lambda: gateway.http.get("/status").json()["corpus"]["complete"], "complete"
            )
            assert commands(redis) == (values, sets), "nothing was left to compute"
            names = [f"{document['doc_id']}.txt" for document in documents]
            behind = set()
            for first in range(0, len(names), 4):
                answer = gateway.ask(
                    "Which colour is named?",
                    documents=names[first : first + 4],
                    top_k=4,
                    max_tokens=2,
                    fusion={"method": "pie"},
                )
                assert "cold" not in tiers(answer), answer["cache"]
                behind |= {each["behind"] for each in answer["cache"]["documents"][1:]}
            assert 9 in behind and 0 not in behind


@pytest.mark.slow
def test_an_actor_dies_and_everything_is_stored_once_and_seen_by_a_gateway(
    tmp_path: Path, model: Path, corpus: Documents, postgresql_url: str
) -> None:
    rows = tmp_path / "rows.jsonl"
    lines = [json.dumps(document) for document in corpus[:60]]
    rows.write_text("\n".join([*lines[:30], "{", *lines[30:]]))
    with redis_server() as redis, hashing_endpoint() as embedder:
        place = {
            "database": postgresql_url,
            "redis_url": redis.patient_url,
            "embedder_url": embedder,
            "embedder": "hashing",
            "ssd_tier_gib": 0,
        }
        with Service(model, tmp_path / "gateway", **place) as gateway:
            environment = {k: v for k, v in os.environ.items() if not k.startswith("KVSTITCH_")}
            environment |= {f"KVSTITCH_{k.upper()}": str(v) for k, v in place.items()}
            environment["KVSTITCH_MODEL"] = str(model)
            environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
            command = [sys.executable, "-c", COMMAND, str(rows)]
            with subprocess.Popen(
                command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            ) as process:
                killed_actor(postgresql_url, process)
                output, errors = process.communicate(timeout=END_S)
            assert process.returncode == 0, errors[-4000:]
            ended = json.loads(output.splitlines()[-1])
            assert (ended["done"], ended["failed"], ended["ended"]) == (60, 1, True)
            assert ended["stored"] + ended["present"] == ended["chunks"]
            assert [error["doc_id"] for error in ended["errors"]] == ["rows.jsonl, line 31"]
            values, sets = commands(redis)
            assert sets == values, "a key was put twice"
            assert gateway.http.get("/admin/collections").json()["collections"] == [
                {
                    "collection": "default",
                    "documents": 60,
                    "chunks": ended["chunks"],
                    "tokens": ended["tokens"],
                }
            ]
            answer = gateway.ask(
                "Which colour is named?",
                documents=[one["doc_id"] for one in corpus[:3]],
                top_k=3,
                max_tokens=4,
                fusion={"method": "pie"},
            )
            assert set(tiers(answer)) == {"redis"}
