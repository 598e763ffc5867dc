"""What all servers of the comparison have in common."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from benchmarks.peers.dialects import Dialect
from loadtest.traffic.routes import CorpusDocument


@dataclass(frozen=True)
class Conditions:
    """What is the same for all servers.

    Attributes:
        model: the model's folder.
        folder: for logs and data.
        threads: of every server.
        context: longest prompt and answer, in tokens.
        cache_mib: for KV caches.
        begins: the words that end every prompt and begin its answer.
        slots: prompts that llama.cpp computes together; the others decide that themselves.
        step_tokens: that vLLM computes in one step; None: its own default.
        whole_answers: every answer has all of `max_tokens`.
        dtype: of weights and KV, where a server can be told.
    """

    model: Path
    folder: Path
    threads: int = 2
    context: int = 4096
    cache_mib: int = 1024
    begins: str = ""
    slots: int = 1
    step_tokens: int | None = None
    whole_answers: bool = False
    dtype: str = "bfloat16"

    @property
    def answer_fields(self) -> Mapping[str, Any]:
        """What OpenAI-like servers are sent so that answers are as long as they should be."""
        return {"ignore_eos": True} if self.whole_answers else {}

    @property
    def kv_bytes_per_token(self) -> int:
        """Of the model in bfloat16: keys and values of every layer and KV head."""
        config = json.loads((self.model / "config.json").read_text(encoding="utf-8"))
        heads, width = config["num_attention_heads"], config["hidden_size"]
        per_head = config.get("head_dim") or width // heads
        kv_heads = config.get("num_key_value_heads") or heads
        return int(2 * config["num_hidden_layers"] * kv_heads * per_head * 2)

    @property
    def environment(self) -> Mapping[str, str]:
        """Environment variables of every server."""
        return {
            "OMP_NUM_THREADS": str(self.threads),
            "OMP_WAIT_POLICY": "PASSIVE",
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
        }


@dataclass(frozen=True)
class About:
    """What a result says about a server.

    Attributes:
        version: its own.
        settings: what was chosen, in words.
        versions: of packages that matter.
    """

    version: str
    settings: str
    versions: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {
            "version": self.version,
            "settings": self.settings,
            "versions": dict(self.versions),
        }


class Peer(Protocol):
    """A server that is compared."""

    @property
    def name(self) -> str:
        """Its name in the table."""
        ...

    @property
    def url(self) -> str:
        """Its base URL while it runs."""
        ...

    @property
    def dialect(self) -> Dialect:
        """How it is asked."""
        ...

    def start(self) -> None:
        """Starts it, and returns when it answers.

        Raises:
            Absent: it is not installed, or does not start.
        """
        ...

    def stop(self) -> None:
        """Stops it. Does nothing if it does not run."""
        ...

    def store(self, documents: Sequence[CorpusDocument]) -> bool:
        """Gives it the corpus before anybody asks; False: it has no use for it."""
        ...

    def rest(self) -> None:
        """Waits until it computes no more.

        Raises:
            Ended: it is gone.
        """
        ...

    def cpu_s(self) -> float:
        """Processor seconds that it has taken so far."""
        ...

    def memory_mib(self) -> float:
        """Memory that it holds now."""
        ...

    def about(self) -> About:
        """Its version and settings; it runs."""
        ...
