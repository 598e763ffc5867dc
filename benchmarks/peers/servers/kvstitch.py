"""kvstitch, one server for each fusion method.

With one for all, a method would find what another one's request has stored.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import httpx

from benchmarks.peers.dialects import Kvstitch
from benchmarks.peers.prompts import CHUNK_TOKENS, PREFIX_MODE
from benchmarks.peers.servers.own_process import OwnProcess
from benchmarks.peers.servers.peer import About, Conditions
from kvstitch.service.messages.requests import HistoryMode
from loadtest.local_service import ingest
from loadtest.traffic.routes import CorpusDocument

VANILLA = "kvstitch vanilla"
METHODS = ("vanilla", "question_scout", "pie")


class KvstitchServer(OwnProcess):
    """`kvstitch serve`: half of the memory for documents, half for running and kept prompts."""

    def __init__(
        self, method: str, conditions: Conditions, history: HistoryMode | None = None
    ) -> None:
        name = f"kvstitch {method}" + (f", history {history}" if history else "")
        super().__init__(name, conditions, "/health/ready")
        self.dialect = Kvstitch(method, conditions.begins, history)

    def command(self, port: int) -> Sequence[str]:
        data = self.conditions.folder / f"data-{self.dialect.method}-{self.dialect.history or ''}"
        serve = [sys.executable, "-m", "kvstitch.service.cli", "serve", "--host", "127.0.0.1"]
        serve += ["--port", str(port), "--data-dir", str(data)]
        model = self.conditions.model
        if self.conditions.whole_answers:
            model = without_end(model, self.conditions.folder / "without-end")
        return [*serve, "--model", str(model)]

    def environment(self) -> Mapping[str, str]:
        half = self.conditions.cache_mib // 2
        return {
            "KVSTITCH_THREADS": str(self.conditions.threads),
            "KVSTITCH_CHUNK_TOKENS": str(CHUNK_TOKENS),
            "KVSTITCH_PREFIX_MODE": PREFIX_MODE,
            "KVSTITCH_MEMORY_TIER_MIB": str(half),
            "KVSTITCH_POOL_TOKENS": str(half * 2**20 // self.conditions.kv_bytes_per_token),
        }

    def folder(self) -> Path | None:
        return None  # a checkout runs from its root

    def store(self, documents: Sequence[CorpusDocument]) -> bool:
        ingest(self.url, documents)
        return True

    def about(self) -> About:
        status = httpx.get(f"{self.url}/status", timeout=30.0).json()
        methods = httpx.get(f"{self.url}/v1/methods", timeout=30.0).json()
        found = [m for m in methods["fusion"] if m["name"] == self.dialect.method]
        given = [f"{k} {p['default']}" for m in found for k, p in m["parameters"].items()]
        settings = f"{status['model']['dtype']}, prefix mode {PREFIX_MODE}, the corpus in memory"
        settings += f"; {', '.join(given)}" if given else ""
        return About(str(status["version"]), settings)


def without_end(model: Path, folder: Path) -> Path:
    """The model without a token that ends an answer: so each has as many tokens as it may.

    kvstitch has no `ignore_eos`. All other files are links; an existing folder is left as it is.
    """
    if folder.is_dir():
        return folder
    folder.mkdir(parents=True)
    for file in model.iterdir():
        if file.name in ("config.json", "generation_config.json"):
            config = json.loads(file.read_text(encoding="utf-8"))
            (folder / file.name).write_text(json.dumps(config | {"eos_token_id": None}))
        else:
            (folder / file.name).symlink_to(file)
    return folder
