"""What an undisturbed service answers in every cache state, and where it stores every document.

It is asked once, before anything is broken; nothing in a run depends on a second service.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.service import Service
from tests.trials.chaos.asks import Ask
from tests.trials.chaos.documents import TENANTS, Document
from tests.trials.chaos.errors import Violation
from tests.trials.chaos.journal import load_json, save_json

SECRET = "c4" * 32  # both services derive the same chunk keys from it
FIXED = {"dtype": "float32", "tenant_secret": SECRET, "pool_tokens": 8192}
ATTEMPTS = 100


@dataclass(frozen=True)
class Twin:
    """Legal answers, by question and cache state; chunk keys, by tenant and document."""

    answers: dict[str, dict[str, str]]
    keys: dict[str, str]
    systems: list[str]

    def expected(self, ask: Ask, state: str) -> set[str]:
        """Every answer that is right in this state; an earlier prompt may have had any."""
        answers = self.answers[ask.name]
        return set(answers.values()) if "p" in state else {answers[state]}

    def key(self, document: Document) -> str:
        return self.keys[f"{document.tenant}/{document.doc_id}"]


def make_key(data_dir: Path, tenant: str) -> str:
    """An API key of a tenant, made as an operator makes it."""
    data_dir.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "kvstitch.service.cli", "keys", "create", "--json"]
    made = subprocess.run(
        [*command, "--data-dir", str(data_dir), "--tenant", tenant],
        capture_output=True,
        text=True,
        check=True,
    )
    return str(json.loads(made.stdout)["key"])


def of_service(model: Path, documents: list[Document], asks: list[Ask], folder: Path) -> Twin:
    """The twin's knowledge, asked now or read from `folder`, where it is kept."""
    kept = folder / "twin.json"
    if (known := load_json(kept)) is None:
        known = _ask_all(model, documents, asks, folder / "twin" / "data")
        save_json(kept, known)
    return Twin(known["answers"], known["keys"], known["systems"])


def _ask_all(
    model: Path, documents: list[Document], asks: list[Ask], data_dir: Path
) -> dict[str, object]:
    data_dir.mkdir(parents=True)
    api_keys = {tenant: make_key(data_dir, tenant) for tenant in TENANTS}
    keys: dict[str, str] = {}
    systems: list[str] = []
    with Service(model, data_dir, memory_tier_mib=0, **FIXED) as service:
        for tenant in TENANTS:
            service.http.headers["Authorization"] = f"Bearer {api_keys[tenant]}"
            seen = service.chunk_files()
            for document in (d for d in documents if d.tenant == tenant):
                service.ingest([document.body])
                new = {path.stem for path in service.chunk_files() - seen}
                seen = service.chunk_files()
                if len(new) == 2:  # the tenant's first: the system prompt comes with it
                    systems += sorted(new)
                else:
                    (keys[f"{tenant}/{document.doc_id}"],) = new
            first = next(d for d in documents if d.tenant == tenant)
            own = _key_of_first(service, first, systems[-2:])
            keys[f"{tenant}/{first.doc_id}"] = own
            systems.remove(own)
        service.http.headers["Authorization"] = f"Bearer {api_keys['red']}"
        answers = {ask.name: _states(service, ask, keys) for ask in asks}
    return {"answers": answers, "keys": keys, "systems": systems}


def _key_of_first(service: Service, first: Document, candidates: Iterable[str]) -> str:
    """Which of the two files is the document's: it goes when the document is deleted."""
    before = {path.stem for path in service.chunk_files()}
    assert service.http.delete(f"/admin/documents/{first.doc_id}").status_code == 200
    (gone,) = before - {path.stem for path in service.chunk_files()}
    assert gone in candidates
    service.ingest([first.body])
    return gone


def _states(service: Service, ask: Ask, keys: dict[str, str]) -> dict[str, str]:
    """The answer for every subset of the documents being cached."""
    answers: dict[str, str] = {}
    for bits in itertools.product("10" if ask.reads_kv else "0", repeat=len(ask.doc_ids)):
        answers["".join(bits)] = _in_state(service, ask, keys, "".join(bits))
    return answers


def _in_state(service: Service, ask: Ask, keys: dict[str, str], wanted: str) -> str:
    for _ in range(ATTEMPTS):
        for doc_id, bit in zip(ask.doc_ids, wanted, strict=True):
            if bit == "0":
                key = keys[f"red/{doc_id}"]
                for path in (service.data_dir / "kv").glob(f"{key[:2]}/{key[2:4]}/{key}.*"):
                    path.unlink(missing_ok=True)
        reply = service.http.post(ask.route, json=ask.body())
        assert reply.status_code == 200, reply.text
        state, text = ask.read(reply.json())
        if state == wanted:
            return text
        time.sleep(0.1)  # what was asked for and missing is written back
    raise Violation(f"the twin does not come to {wanted} for {ask.name}")
