"""What the proofs of a fleet count on: the parts survive their kills as they must, and a client's
ledger tells good ends from others."""

from __future__ import annotations

import time
from argparse import Namespace

import psycopg

from benchmarks.fleet.proofs.ledger import Ledger
from benchmarks.fleet.proofs.same_answers import Answer, reordered, requests
from tests.postgresql_server import postgresql_server


def test_what_is_committed_outlives_a_kill_of_the_database() -> None:
    with postgresql_server(durable=True) as server:
        url = server.database()
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("CREATE TABLE numbers (number INT)")
            for number in range(50):
                connection.execute("INSERT INTO numbers VALUES (%s)", (number,))
            server.kill()
        server.start()
        with psycopg.connect(url) as connection:
            assert connection.execute("SELECT count(*) FROM numbers").fetchone() == (50,)


def test_documents_come_again_in_another_order_and_only_they() -> None:
    ids = ["a", "b", "c"]
    documents = [{"doc_id": i, "title": i, "text": i} for i in ids]
    args = Namespace(methods=["pie"], questions=20, seed=1, top_k=3, max_tokens=4)
    sent = requests(["What?", "Where?"], args)
    found = [Answer("", tuple(ids), ())] * 19 + [Answer("", ("b",), ())]
    again = reordered(sent, found, documents, seed=2)
    orders = [[d["doc_id"] for d in request["inline_documents"]] for request in again]
    assert all(sorted(order) == ids and order != ids for order in orders[:19])
    assert orders[19] == ["b"] and not any("top_k" in request for request in again)


def test_recovery_counts_good_requests_that_began_after_the_kill() -> None:
    ledger = Ledger()
    ledger.ended("answer", "good", "gateway-0", began=0.0)
    killed = time.monotonic()
    ledger.ended("answer", "good", "gateway-0", began=killed - 1)
    ledger.ended("answer", "refused 503 worker_unavailable", "gateway-0", began=killed)
    assert ledger.first_good_s("answer", killed) is None
    ledger.ended("answer", "good", "gateway-1", began=killed)
    assert ledger.first_good_s("answer", killed, "gateway-0") is None
    assert (took := ledger.first_good_s("answer", killed)) is not None and 0 <= took < 60
    assert ledger.outcomes(killed) == {
        "answer: good": 2,
        "answer: refused 503 worker_unavailable": 1,
    }
