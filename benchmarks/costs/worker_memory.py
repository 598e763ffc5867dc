"""Memory of a worker process beside the model's weights, the KV pool and the memory tier.

    python -m benchmarks.costs.worker_memory [--model smollm2] [--pools 2048 8192]

Starts a service for each size of the pool, has it answer prompts of eight passages, and reads what
the kernel says of its worker. What is left after weights, pool and tier are libraries, buffers of
the layer loop and Python.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import httpx

from kvstitch.service.models import prepare_model
from kvstitch.service.settings import load
from kvstitch_tune.records import describe
from loadtest.local_service import service

OUT = Path("benchmarks/results/worker_memory.json")
MIB = 1024 * 1024
TIER_MIB = 64
ANSWERS, PASSAGES, WORDS = 12, 8, 100
TARGET_MIB = 500


def worker_of(parent: int) -> int:
    """The process that runs `kvstitch.service.worker` below another one."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes().split(b"\0")
            ppid = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if ppid == parent and b"kvstitch.service.worker" in command:
            return int(folder.name)
    raise RuntimeError(f"process {parent} has no worker")


def service_process(data_dir: Path) -> int:
    """The process that serves a data folder."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if str(data_dir).encode() in command and b"serve" in command:
            return int(folder.name)
    raise RuntimeError(f"nobody serves {data_dir}")


def memory_mib(process: int) -> dict[str, float]:
    """Resident memory, and the part of it that is no file's."""
    text = Path(f"/proc/{process}/smaps_rollup").read_text(encoding="utf-8")
    found = dict(re.findall(r"^(\w+):\s+(\d+) kB", text, re.MULTILINE))
    return {"resident": int(found["Rss"]) / 1024, "anonymous": int(found["Anonymous"]) / 1024}


def processor_s(process: int) -> float:
    """Processor time that a process has taken."""
    stat = Path(f"/proc/{process}/stat").read_text(encoding="utf-8")
    return sum(map(int, stat.rpartition(")")[2].split()[11:13])) / os.sysconf("SC_CLK_TCK")


def kv_bytes_per_token(model: Path) -> int:
    """In bfloat16."""
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    heads = config["num_attention_heads"]
    width = config.get("head_dim") or config["hidden_size"] // heads
    kv_heads = config.get("num_key_value_heads") or heads
    return int(2 * config["num_hidden_layers"] * kv_heads * width * 2)


def measure(model: Path, pool_tokens: int, folder: Path, source: random.Random) -> dict[str, Any]:
    os.environ |= {
        "KVSTITCH_POOL_TOKENS": str(pool_tokens),
        "KVSTITCH_MEMORY_TIER_MIB": str(TIER_MIB),
        "OMP_WAIT_POLICY": "PASSIVE",
    }
    words = "the lamp of a ship was kept in town by its river while others wrote of green hills"
    tokens = 0
    with service(folder, model) as url, httpx.Client(base_url=url, timeout=300.0) as http:
        for _ in range(ANSWERS):
            texts = [
                {"text": " ".join(source.choices(words.split(), k=WORDS)), "title": str(number)}
                for number in range(PASSAGES)
            ]
            body = {"question": "What was kept?", "inline_documents": texts, "max_tokens": 24}
            reply = http.post("/v1/rag/generate", json=body)
            reply.raise_for_status()
            tokens = reply.json()["usage"]["prompt_tokens"]
        used = memory_mib(worker_of(service_process(folder)))
    weights = sum(file.stat().st_size for file in model.glob("*.safetensors")) / MIB
    pool = pool_tokens * kv_bytes_per_token(model) / MIB
    # All of the tier is counted as used only where that many bytes were stored.
    rest = used["resident"] - weights - pool - TIER_MIB
    parts = {"weights": weights, "pool": pool, "memory tier": float(TIER_MIB), "rest": rest}
    return {"pool_tokens": pool_tokens, "prompt_tokens": tokens, "mib": {**used, **parts}}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.costs.worker_memory",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--pools", type=int, nargs="+", default=[2048, 8192])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    model, source = prepare_model(load(model=args.model)), random.Random(args.seed)
    with tempfile.TemporaryDirectory(prefix="kvstitch-memory-") as folder:
        runs = [measure(model, pool, Path(folder) / str(pool), source) for pool in args.pools]
    about = {"model": model.name, "seed": args.seed, "answers": ANSWERS, "target_mib": TARGET_MIB}
    result = {"environment": describe(), **about, "runs": runs}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(runs, indent=1))
    return 0 if all(run["mib"]["rest"] <= TARGET_MIB for run in runs) else 1


if __name__ == "__main__":
    sys.exit(main())
