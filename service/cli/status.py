"""`kvstitch status`: what a running service is doing."""

from __future__ import annotations

import argparse
import json
from typing import Any

from service.cli.http import checked, client

MIB = 1024 * 1024


def run(given: argparse.Namespace) -> int:
    """Print the status; 0 if the service is ready, else 1."""
    with client(given.url) as http:
        status = checked(http.get("/status"))
    if given.json:
        print(json.dumps(status, indent=2, ensure_ascii=False))
    else:
        print("\n".join(_lines(status)))
    return 0 if status["state"] == "ready" else 1


def _lines(status: dict[str, Any]) -> list[str]:
    state = status["state"] + (f": {status['reason']}" if status["reason"] else "")
    lines = [f"kvstitch {status['version']}  {state}"]
    if (model := status["model"]) is not None:
        lines.append(
            f"model    {model['id']} ({model['family']}, {model['layers']} layers, "
            f"{model['dtype']} on {model['device']}, context {model['max_context']})"
        )
    if (corpus := status["corpus"]) is not None:
        jobs = ", ".join(f"{n} {name}" for name, n in sorted(corpus["jobs"].items())) or "none"
        lines.append(
            f"corpus   {corpus['documents']} documents, {corpus['chunks']} chunks; jobs: {jobs}"
        )
    worker = status["worker"]
    free = "?" if worker["pool_free"] is None else f"{100 * worker['pool_free']:.0f} %"
    lines.append(f"requests {status['in_flight']} in flight; KV pool {free} free")
    for name, tier in sorted(status["tiers"].items()):
        used = tier.get("used_bytes", 0) / MIB
        health = "" if tier.get("healthy", 1) else ", not answering"
        lines.append(
            f"tier     {name}: {tier.get('entries', 0):.0f} chunks, {used:.1f} MiB{health}"
        )
    return lines
