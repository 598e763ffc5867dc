"""How large a fleet must be: workers, memory, Redis servers, bytes; for any model and any load.

    python -m benchmarks.fleet.sizing --config /models/X/config.json --prefill-us 35 \\
        --documents 100000 --tokens 2000 --rate 20

The assumptions are printed with the result, and each can be given: measure yours.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path

from benchmarks.fleet.fleet_size import TIERS, Load, Machine, read_s, size
from benchmarks.sizing import CODECS, MIDDLE, MODELS, TEXT_BYTES, TOKENS, VECTOR_BYTES, Model


def table(model: Model, codec: str, load: Load, machine: Machine) -> str:
    """The result with its arithmetic, as Markdown."""
    got = size(model, codec, load, machine)
    chunk, compute = got.chunk_bytes, TOKENS * model.prefill_s
    reads = load.rate * load.chunks_per_request
    held = ", ".join(f"{name} {share:.0%}" for name, share in got.shares.items())
    slow = [tier for tier in TIERS if read_s(tier, chunk, machine) + machine.repair * compute
            >= compute]  # fmt: skip
    rows = {
        "asked": f"{load.documents:,} documents of {load.tokens:,} tokens, {load.rate:g} "
        f"requests/s of {load.chunks_per_request} chunks, {load.question} tokens of "
        f"question, {load.answer} of answer; {model.name}, `{codec}`",
        "chunks": f"{load.documents:,} × {load.chunks // load.documents} = {load.chunks:,} of "
        f"{_bytes(chunk)}",
        "KV of all": f"{_bytes(got.kv_bytes)}: what S3 holds if all is written there",
        "bulk": f"{load.chunks:,} × {TOKENS} tokens × {1e6 * model.prefill_s:g} µs = "
        f"{got.precompute_s / 3600:,.1f} GPU hours",
        "reads from": held,
        "a chunk takes": f"{1e3 * compute:.1f} ms computed; read "
        + ", ".join(f"{1e3 * read_s(tier, chunk, machine):.1f} ms from {tier}" for tier in TIERS)
        + f"; and {1e3 * machine.repair * compute:.1f} ms repaired",
        "slower than computing": ", ".join(slow) or "no tier",
        "a request takes": f"{1e3 * got.seconds:.0f} ms of a worker",
        "**workers**": f"**{got.workers}** ≥ {load.rate:g} × {got.seconds:.3f} s / "
        f"{machine.utilisation:g}; one more, so that one may fail",
        "memory tiers": f"{got.workers} × {machine.memory_gib:g} GiB, and the weights of each",
        "**Redis servers**": f"**{got.redis_servers}**: {got.redis_chunks:,} chunks, "
        f"{_bytes(got.redis_chunks * chunk)} in servers of {machine.redis_gib:g} GiB; "
        f"{reads:g} chunks/s × {got.shares['redis']:.0%} = {got.redis_bytes_s / 1e9:.2f} GB/s",
        "S3": f"{got.s3_gets_s:.1f} GETs/s",
        "PostgreSQL": f"{_bytes(load.chunks * (TEXT_BYTES + VECTOR_BYTES))} of text and vectors",
        "gateways": f"2 or more; {_bytes(load.chunks * VECTOR_BYTES)} of vectors in each, unless "
        "they are in pgvector",
    }
    return "\n".join(["| | |", "|---|---|", *(f"| {k} | {v} |" for k, v in rows.items()), ""])


def _bytes(count: float) -> str:
    unit, name = next(
        (1024**power, name)
        for power, name in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB"), (0, "B"))
        if count >= 1024**power or power == 0
    )
    return f"{count / unit:,.1f} {name}"


def of_config(path: Path, prefill_s: float) -> Model:
    """The shape of a Hugging Face model.

    Raises:
        ValueError: The file does not say it.
    """
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        told = told.get("text_config", told)
        heads = int(told["num_attention_heads"])
        head_dim = int(told.get("head_dim") or told["hidden_size"] // heads)
        kv_heads = int(told.get("num_key_value_heads") or heads)
        return Model(
            path.parent.name, int(told["num_hidden_layers"]), kv_heads, head_dim, prefill_s
        )
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise ValueError(f"{path} does not tell a model's layers and heads: {error}") from error


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.fleet.sizing",
        description="How large a fleet must be. Times are assumptions: give what you measured.",
    )
    names = ", ".join(model.name for model in MODELS)
    parser.add_argument("--model", default=MIDDLE.name, help=f"one of: {names}")
    parser.add_argument("--config", type=Path, help="config.json of another model")
    parser.add_argument("--prefill-us", type=float, help="full prefill, µs per token")
    parser.add_argument("--codec", choices=CODECS, default="k8v8")
    for part in (Load, Machine):
        for each in fields(part):
            assert isinstance(each.default, (int, float))
            parser.add_argument(
                f"--{each.name.replace('_', '-')}",
                type=type(each.default),
                default=each.default,
                help=f"default: {each.default:g}",
            )
    return parser


def _model(given: argparse.Namespace) -> Model:
    if given.config is not None:
        if not given.prefill_us:
            raise ValueError(
                "--config needs --prefill-us: kvstitch's dashboards show it, or measure"
            )
        return of_config(given.config, given.prefill_us / 1e6)
    found = next((model for model in MODELS if model.name == given.model), None)
    if found is None:
        raise ValueError(f"{given.model!r} is unknown: give its --config and --prefill-us")
    return found if not given.prefill_us else replace(found, prefill_s=given.prefill_us / 1e6)


def main(arguments: Sequence[str]) -> int:
    given = _parser().parse_args(arguments)
    try:
        model = _model(given)
        load = Load(**{each.name: getattr(given, each.name) for each in fields(Load)})
        machine = Machine(**{each.name: getattr(given, each.name) for each in fields(Machine)})
        for each in (*fields(Load), *fields(Machine)):
            if getattr(given, each.name) <= 0:
                raise ValueError(f"--{each.name.replace('_', '-')} must be above 0")
        print(table(model, given.codec, load, machine), end="")
    except ValueError as error:
        print(f"sizing: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
