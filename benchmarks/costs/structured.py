"""JSON by schema beside free text: is every answer valid, and what does it cost per token?

    python -m benchmarks.costs.structured [--model smollm2] [--schemas 500] [--at-a-time 8]
    python -m benchmarks.costs.structured --real --schemas 300

Generates schemas (nested objects, lists, numbers, patterns, formats, enumerations, unions), all of
which bound how long an answer can be, asks a real service for an answer to each at temperature 1,
and checks the answers with jsonschema-rs, which shares no code with what kept them to their form.
Blocks of these requests take turns with the same prompts without a schema, whose answers have as
many tokens. The prompts are computed before both: whoever came second would find them stored, and
nobody's prompt would lengthen his time per token. With `--real` the schemas are those that programs
of others have made, which bound nothing: answers that `max_tokens` has cut are counted by
themselves, and so are those to a schema of which something can only be checked afterwards.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import lzma
import random
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import jsonschema_rs

from benchmarks.costs.worker_memory import processor_s, service_process, worker_of
from kvstitch.service.models import prepare_model
from kvstitch.service.settings import load
from kvstitch_tune.records import describe
from loadtest.local_service import service

OUT = Path("benchmarks/results/structured.json")
REAL = Path("tests/service/grammars/real_schemas.json.xz")
BLOCK = 25
MAX_TOKENS = 512
WORDS = ("name", "city", "year", "kind", "price", "tags", "owner", "size", "note", "unit", "code")
PATTERNS = ("[A-Z]{2}-[0-9]{3}", "(yes|no)", "[a-z]{3,8}", "v[0-9]{1,3}\\.[0-9]")
FORMATS = ("date", "uuid", "ipv4")
TARGET = 1.2


def schema(source: random.Random, depth: int = 3) -> dict[str, Any]:
    """A random schema whose answers are bounded."""
    kinds = ["string", "integer", "number", "boolean", "enum", "pattern", "format", "null", "const"]
    kind = source.choice(kinds + ["object", "array", "union"] * 2 if depth else kinds)
    match kind:
        case "string":
            return {"type": "string", "maxLength": source.randint(3, 30)}
        case "integer" | "number":
            low = source.randint(-1000, 1000)
            return {"type": kind, "minimum": low, "maximum": low + source.randint(1, 5000)}
        case "enum":
            return {"enum": source.sample([*WORDS, 1, 2.5, None, True], 4)}
        case "const":
            return {"const": source.choice(WORDS)}
        case "pattern":
            return {"type": "string", "pattern": f"^{source.choice(PATTERNS)}$"}
        case "format":
            return {"type": "string", "format": source.choice(FORMATS)}
        case "object":
            return an_object(source, depth - 1)
        case "array":
            least = source.randint(0, 2)
            bounds = {"minItems": least, "maxItems": least + source.randint(0, 3)}
            return {"type": "array", "items": schema(source, depth - 1), **bounds}
        case "union":
            return {"anyOf": [schema(source, depth - 1) for _ in range(2)]}
        case _:
            return {"type": kind}


def an_object(source: random.Random, depth: int) -> dict[str, Any]:
    names = source.sample(WORDS, source.randint(1, 4))
    return {
        "type": "object",
        "properties": {name: schema(source, depth) for name in names},
        "required": source.sample(names, source.randint(0, len(names))),
        "additionalProperties": False,
    }


async def ask(http: httpx.AsyncClient, number: int, **fields: Any) -> dict[str, Any]:
    body = {"top_k": 0, "temperature": 1.0, "seed": number, **fields}
    reply = await http.post("/v1/rag/generate", json=body)
    if reply.status_code == 422:
        return {"refused": reply.json()["error"]["message"]}
    reply.raise_for_status()
    answer: dict[str, Any] = reply.json()
    return answer


async def block(url: str, asked: list[dict[str, Any]], at_a_time: int) -> list[dict[str, Any]]:
    """The answers, so many under way at any time."""
    slots = asyncio.Semaphore(at_a_time)
    async with httpx.AsyncClient(base_url=url, timeout=300.0) as http:

        async def one(number: int, fields: dict[str, Any]) -> dict[str, Any]:
            async with slots:
                return await ask(http, number, **fields)

        return await asyncio.gather(*(one(n, fields) for n, fields in enumerate(asked)))


def valid(answer: dict[str, Any], form: dict[str, Any]) -> bool:
    try:
        content = json.loads(answer["text"])
    except ValueError:
        return False
    return bool(jsonschema_rs.validator_for(form, validate_formats=True).is_valid(content))


def schemas(count: int, seed: int, *, real: bool) -> list[dict[str, Any]]:
    """So many schemas, generated or real ones."""
    source = random.Random(seed)
    if not real:
        return [an_object(source, 2) for _ in range(count)]
    known = [each["schema"] for each in json.loads(lzma.decompress(REAL.read_bytes()))]
    return source.sample(known, min(count, len(known)))


def compare(
    url: str, forms: list[dict[str, Any]], at_a_time: int, cpu_s: Callable[[], float]
) -> dict[str, Any]:
    """Ask with and without the schemas.

    Args:
        cpu_s: Processor time that the worker has taken so far.
    """
    count, taken = len(forms), {"guided": 0.0, "free": 0.0}

    def timed(kind: str, asked: list[dict[str, Any]]) -> list[dict[str, Any]]:
        before = cpu_s()
        answers = asyncio.run(block(url, asked, at_a_time))
        taken[kind] += cpu_s() - before
        return answers

    guided: list[dict[str, Any]] = []
    free: list[dict[str, Any]] = []
    for start in range(0, count, BLOCK):
        part = forms[start : start + BLOCK]
        asked = [
            {"question": f"Invent an example. Schema: {json.dumps(form)[:600]}"} for form in part
        ]
        forced = [
            {**a, "max_tokens": MAX_TOKENS, "guided": {"json_schema": form}}
            for a, form in zip(asked, part, strict=True)
        ]
        asyncio.run(block(url, [{**a, "max_tokens": 1} for a in asked], at_a_time))
        answers = timed("guided", forced)
        as_long = [
            {**a, "ignore_eos": True, "max_tokens": max(1, r["usage"]["completion_tokens"])}
            if "refused" not in r
            else {**a, "max_tokens": 1}
            for a, r in zip(asked, answers, strict=True)
        ]
        free += timed("free", as_long)
        guided += answers
        print(f"{len(guided)} answers", file=sys.stderr, flush=True)
    refused = [r["refused"] for r in guided if "refused" in r]
    answered = [each for each in zip(guided, free, forms, strict=True) if "refused" not in each[0]]
    guided, free = [g for g, _, _ in answered], [f for _, f, _ in answered]
    ended = [(g, form) for g, _, form in answered if g["finish_reason"] == "stop"]
    unheld = [g for g, _ in ended if any("was not held to" in said for said in g["warnings"])]
    wrong = [
        {"schema": form, "text": r["text"], "warnings": r["warnings"]}
        for r, form in ended
        if not valid(r, form)
    ]
    pairs = [
        (g["timing"]["tpot_s"], f["timing"]["tpot_s"])
        for g, f, _ in answered
        if g["timing"]["tpot_s"] and f["timing"]["tpot_s"]
    ]
    ratios = sorted(g / f for g, f in pairs)
    return {
        "schemas": count,
        "refused": refused,
        "cut by max_tokens": len(answered) - len(ended),
        "ended": len(ended),
        "ended, checked only": len(unheld),
        "valid": len(ended) - len(wrong),
        "not valid": wrong,
        "tokens": sum(r["usage"]["completion_tokens"] for r in guided),
        "tpot_ms, guided": 1000 * statistics.median(g for g, _ in pairs),
        "tpot_ms, free": 1000 * statistics.median(f for _, f in pairs),
        "tpot, guided over free": {
            "median": statistics.median(ratios),
            "quartiles": [ratios[len(ratios) // 4], ratios[3 * len(ratios) // 4]],
            "target": TARGET,
        },
        "decode seconds, guided over free": sum(r["stages"].get("decode", 0.0) for r in guided)
        / sum(r["stages"].get("decode", 0.0) for r in free),
        "worker's processor seconds, guided over free": taken["guided"] / taken["free"],
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.costs.structured",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--schemas", type=int, default=500)
    parser.add_argument("--at-a-time", type=int, default=8)
    parser.add_argument("--real", action="store_true", help="schemas that programs have made")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    model = prepare_model(load(model=args.model))
    with (
        tempfile.TemporaryDirectory(prefix="kvstitch-structured-") as folder,
        service(Path(folder), model) as url,
    ):
        forms = schemas(args.schemas, args.seed, real=args.real)
        worker = worker_of(service_process(Path(folder)))
        measured = compare(url, forms, args.at_a_time, lambda: processor_s(worker))
    about = {"model": model.name, "real": args.real, "at_a_time": args.at_a_time, "seed": args.seed}
    result = {"environment": describe(), **about, **measured}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    shown = {k: v for k, v in result.items() if k not in ("environment", "not valid")}
    print(json.dumps(shown, indent=1))
    return 0 if result["valid"] == result["ended"] else 1


if __name__ == "__main__":
    sys.exit(main())
