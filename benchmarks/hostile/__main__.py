"""Hostile requests beside answers that others read: what do these notice?

    python -m benchmarks.hostile grammars [--model smollm2] [--count 1000] [--at-a-time 16]
    python -m benchmarks.hostile uploads
    python -m benchmarks.hostile document [--bytes 10000000] [--count 20]

One tenant reads streamed answers, one after the other, or `--readers` do. Another sends grammars
that are hard to compile, or files that are hard to read, all of them different; a file that is not
read after 20 seconds is cancelled. Blocks with and without take turns on one service; without
grammars it sends as many questions at a time. Writes time to the first token, time per token, and
the memory of gateway and worker before and after; before that, ordinary documents and questions
have used what is kept once it is used. `document` hands in a text of so many bytes and
then notes, and writes after how many seconds these are found and answered from, and after how many
the text is cancelled.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx

from benchmarks.hostile.documents import beside_a_long_one
from benchmarks.hostile.grammars import Guided, grammars
from benchmarks.hostile.phases import ENDED, Place, compare, place
from benchmarks.hostile.uploads import write
from kvstitch.service.models import prepare_model
from kvstitch.service.settings import load
from kvstitch_tune.records import describe

OUT = Path("benchmarks/results/hostile")
PATIENCE_S = 20.0  # with a file: many are long texts in truth, whose ingestion would take hours


async def _grammars(where: Place, args: argparse.Namespace) -> dict[str, Any]:
    async with where.client(where.hostile) as http:

        async def ask(form: tuple[str, Guided]) -> str:
            body = {"question": "x", "top_k": 0, "max_tokens": 30, "guided": form[1]}
            return _said(await http.post("/v1/rag/generate", json=body))

        async def plain() -> None:
            body = {"question": "x", "top_k": 0, "max_tokens": 30}
            await http.post("/v1/rag/generate", json=body)

        work = grammars(args.count, args.seed)
        return await compare(where, ask, work, args.at_a_time, args.answers, plain)


async def _uploads(where: Place, args: argparse.Namespace) -> dict[str, Any]:
    async with where.client(where.hostile) as http:

        async def hand_in(file: Path) -> str:
            try:
                return await read(file)
            except httpx.TransportError as error:
                return type(error).__name__

        async def read(file: Path) -> str:
            content = await asyncio.to_thread(file.read_bytes)
            reply = await http.post("/admin/precompute", files={"file": (file.name, content)})
            if reply.status_code != 202:
                return _said(reply)
            path = f"/admin/jobs/{reply.json()['job_id']}"
            until = time.monotonic() + PATIENCE_S
            while (job := (await http.get(path)).json())["state"] not in ENDED:
                if time.monotonic() > until:
                    await http.delete(path)
                    return f"cancelled after {PATIENCE_S:g} s"
                await asyncio.sleep(0.5)
            return str(job["state"])

        with tempfile.TemporaryDirectory(prefix="kvstitch-uploads-") as folder:
            files = [
                write(Path(folder), number, args.seed)  # before: some take seconds to make
                for number in range(args.count)
            ]
            return await compare(where, hand_in, files, args.at_a_time, args.answers)


async def _document(where: Place, args: argparse.Namespace) -> dict[str, Any]:
    return await beside_a_long_one(where, args.bytes, args.count, args.seed)


def _said(reply: httpx.Response) -> str:
    if reply.status_code == 200:
        return "200"
    return f"{reply.status_code} {reply.json()['error']['code']}"


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.hostile",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("what", choices=("grammars", "uploads", "document"))
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--count", type=int, help="(default: 1,000; 20 notes)")
    parser.add_argument("--at-a-time", type=int, default=16)
    parser.add_argument("--readers", type=int, default=1, help="at the same time, each a tenant")
    parser.add_argument("--answers", type=int, default=8, help="of a quiet block; there are four")
    parser.add_argument("--bytes", type=int, default=10_000_000, help="of the long document")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    args.count = args.count or {"document": 20}.get(args.what, 1000)
    model = prepare_model(load(model=args.model))
    environment = describe()  # the checkout may change meanwhile
    measure = {"grammars": _grammars, "uploads": _uploads, "document": _document}[args.what]
    with (
        tempfile.TemporaryDirectory(prefix="kvstitch-hostile-") as folder,
        place(Path(folder), model, args.readers) as where,
    ):
        measured = asyncio.run(measure(where, args))
    about = {
        "model": model.name,
        "count": args.count,
        "at_a_time": args.at_a_time,
        "readers": args.readers,
    }
    result = {"environment": environment, **about, "seed": args.seed, **measured}
    args.out.mkdir(parents=True, exist_ok=True)
    file = args.out / f"{args.what}.json"
    file.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps({k: v for k, v in result.items() if k != "environment"}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
