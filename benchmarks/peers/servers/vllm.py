"""vLLM's own server with prefix caching.

It needs an environment of its own: KVSTITCH_VLLM_PYTHON names a Python that has vLLM for CPUs.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import httpx

from benchmarks.peers.dialects import Completions
from benchmarks.peers.processes import Absent
from benchmarks.peers.servers.own_process import OwnProcess
from benchmarks.peers.servers.peer import About, Conditions

PYTHON = "KVSTITCH_VLLM_PYTHON"
NAME = "vLLM"
SERVED = "model"


class VllmServer(OwnProcess):
    """vLLM for CPUs: compiled as it comes, prefix caching, the same memory for KV as the others."""

    def __init__(self, conditions: Conditions) -> None:
        super().__init__(NAME, conditions)
        self.dialect = Completions(SERVED, conditions.answer_fields)

    def command(self, port: int) -> Sequence[str]:
        python = os.environ.get(PYTHON)
        if not python:
            raise Absent(f"{PYTHON} is not set: it names a Python that has vLLM for CPUs")
        # Not the command `vllm`: it asks for a package of that name, and the wheel has another.
        step = self.conditions.step_tokens
        return [
            *(python, "-m", "vllm.entrypoints.openai.api_server"),
            *("--model", str(self.conditions.model), "--served-model-name", SERVED),
            *("--host", "127.0.0.1", "--port", str(port), "--dtype", self.conditions.dtype),
            *("--max-model-len", str(self.conditions.context)),
            *(() if step is None else ("--max-num-batched-tokens", str(step))),
            *("--enable-prefix-caching", "--enable-prompt-tokens-details"),
            "--disable-log-stats",
        ]

    def environment(self) -> Mapping[str, str]:
        return {
            "VLLM_CPU_KVCACHE_SPACE": str(max(1, self.conditions.cache_mib // 1024)),
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
            "PYTHONPATH": "",
        }

    def about(self) -> About:
        version = httpx.get(f"{self.url}/version", timeout=30.0).json()["version"]
        step = self.conditions.step_tokens or "its default number of"
        dtype = self.conditions.dtype
        settings = f"OpenAI server, prefix caching, {dtype}, compiled, {step} tokens a step"
        return About(str(version), settings)
