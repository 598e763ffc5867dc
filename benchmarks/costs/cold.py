"""What a request costs whose chunks are not stored, and what its answer is worth: `cold`.

    python -m benchmarks.costs.cold --model FOLDER --prompts FILE [--samples 30] [--out FILE.json]

Every prompt is asked twice, on an empty store and on one that has every other document: once with
`cold: in_context` and once with `as_stored`. Between the two answers the engine does what it would
do in spare time. Times are CPU seconds of the process, so that a busy machine does not change them,
and ratios to the full prefill of the same prompt. `work` is all that was computed until everything
is stored, decoding left out. The KL is that of the first token to full prefill's, over the tokens
that full prefill finds likeliest.

Prompts are those of `python -m benchmarks.quality.prompts`. A run continues where another
stopped: records are appended to FILE.jsonl.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import torch

from benchmarks.common.engine import open_engine, precompute_now
from benchmarks.common.provenance import provenance
from benchmarks.quality.prompt_file import of_file
from kvstore import MemoryTier, TieredStore
from service.messages.replies import Done, TokenItem, TokenLogprobs
from service.messages.reports import Report
from service.messages.requests import ChunkTokens, ColdMode, Generate, Method, Sampling
from service.worker.api import DecoderModel, Engine, full_prefill_flops, load_model
from tuning.environment import describe
from tuning.prompts import Prompt
from tuning.records import RecordFile
from tuning.statistics import Bootstrap, Estimate

FULL = Method("vanilla")
METHODS = {
    "question_scout": Method("question_scout", {"ratio": 0.15}),
    "a3": Method("a3", {"ratio": 0.15}),
    "pie": Method("pie"),
}
STORED = ("nothing", "half")
MODES: tuple[ColdMode, ...] = get_args(ColdMode)
ANSWER_TOKENS = 8
MEMORY_BYTES = 1 << 30
# Tokens over which the KL is summed. All 49,152 would take longer than a short prompt.
LIKELIEST = 4096


@dataclass(frozen=True)
class Record:
    """One prompt, method, state of the store and mode; seconds are CPU seconds.

    Attributes:
        full_s, full_flops: of the prompt's full prefill.
        first_s, second_s: to the first token of the first and of the second answer.
        background_s, background_flops: between the two.
        first_flops, second_flops: of the two prompts, chunks computed for them included.
        first_kl, second_kl: of the first token to full prefill's, nats.
        same: whether both answers have the same tokens.
        first_agrees, second_agrees: whether they have full prefill's tokens.
    """

    prompt: str
    configuration: str
    tokens: int
    full_s: float
    full_flops: float
    first_s: float
    background_s: float
    second_s: float
    first_flops: float
    background_flops: float
    second_flops: float
    first_kl: float
    second_kl: float
    same: bool
    first_agrees: bool
    second_agrees: bool


@dataclass(frozen=True)
class Answer:
    tokens: list[int]
    first_token: dict[int, float]  # log-probabilities of the likeliest
    seconds: float
    report: Report


@contextmanager
def engine_of(decoder: DecoderModel, prompt: Prompt) -> Iterator[Engine]:
    with (
        TieredStore([MemoryTier(MEMORY_BYTES)]) as store,
        open_engine(decoder, store, pool_tokens=prompt.tokens + 64) as engine,
    ):
        yield engine


def chunks_of(prompt: Prompt) -> list[ChunkTokens]:
    return [ChunkTokens(number, list(ids)) for number, ids in enumerate(prompt.documents)]


def ask(engine: Engine, prompt: Prompt, method: Method, cold: ColdMode) -> Answer:
    """One answer, up to its end; nothing is computed in the background before that."""
    sampling = Sampling(max_tokens=ANSWER_TOKENS, logprobs=LIKELIEST)
    started, first_s = time.process_time(), 0.0
    request = Generate(
        f"{time.monotonic_ns()}",
        prompt.system,
        chunks_of(prompt),
        prompt.question,
        method,
        sampling=sampling,
        prefix_mode="system",
        cold=cold,
    )
    engine.submit(request)
    tokens: list[int] = []
    first_token: TokenLogprobs | None = None
    while True:
        for event in engine.step():
            if isinstance(event, TokenItem):
                if not tokens:
                    first_s, first_token = time.process_time() - started, event.logprobs
                tokens.append(event.token)
            if isinstance(event, Done):
                likeliest = dict(first_token.top) if first_token is not None else {}
                return Answer(tokens, likeliest, first_s, event.report)
        if engine.idle:
            time.sleep(1e-3)


def settle(engine: Engine) -> float:
    """Lets the engine do what it does in spare time. Returns its CPU seconds."""
    started = time.process_time()
    while engine.precompute_queue.pending:
        engine.step()
        if engine.idle:
            time.sleep(1e-3)
    return time.process_time() - started


def divergence(full: dict[int, float], other: dict[int, float]) -> float:
    """KL(full ‖ other) in nats; a token that is not among `other` is as likely as its last one."""
    least = min(other.values())
    terms = (math.exp(p) * (p - other.get(token, least)) for token, p in full.items())
    return max(0.0, sum(terms))


def configuration(method: Method, stored: str, cold: ColdMode) -> str:
    return f"{method.name} | {stored} | {cold}"


def measure(
    decoder: DecoderModel,
    prompt: Prompt,
    methods: Sequence[Method],
    stored: str,
    file: RecordFile[Record],
) -> None:
    """The records of one prompt that the file does not have yet."""
    todo = [
        (method, cold)
        for method in methods
        for cold in MODES
        if (prompt.key, configuration(method, stored, cold)) not in file
    ]
    if not todo:
        return
    with engine_of(decoder, prompt) as engine:
        full = ask(engine, prompt, FULL, "in_context")
    prefix = len(prompt.system)
    for method, cold in todo:
        with engine_of(decoder, prompt) as engine:
            _store(engine, prompt, stored)
            first = ask(engine, prompt, method, cold)
            missing = [len(prompt.system), *(prefix + len(d) for d in prompt.documents)]
            if stored == "half":
                missing = missing[2::2]
            background_s = settle(engine)
            second = ask(engine, prompt, method, cold)
        later = missing if cold == "in_context" else []
        file.add(
            [
                Record(
                    prompt=prompt.key,
                    configuration=configuration(method, stored, cold),
                    tokens=prompt.tokens,
                    full_s=full.seconds,
                    full_flops=full.report.flops,
                    first_s=first.seconds,
                    background_s=background_s,
                    second_s=second.seconds,
                    first_flops=first.report.flops,
                    background_flops=sum(full_prefill_flops(decoder, n) for n in later),
                    second_flops=second.report.flops,
                    first_kl=divergence(full.first_token, first.first_token),
                    second_kl=divergence(full.first_token, second.first_token),
                    same=first.tokens == second.tokens,
                    first_agrees=first.tokens == full.tokens,
                    second_agrees=second.tokens == full.tokens,
                )
            ]
        )


def _store(engine: Engine, prompt: Prompt, stored: str) -> None:
    """S and documents 1, 3, 5 … for "half", nothing for "nothing"."""
    if stored == "half":
        system, *documents = engine.admission.addresses(
            prompt.system, chunks_of(prompt), "system", ""
        )
        with torch.inference_mode():
            for address in [system, *documents[::2]]:
                if address is not None:
                    precompute_now(engine, address)


# -- results --------------------------------------------------------------------------------------

FIGURES: dict[str, Callable[[Record], float]] = {
    "first_ttft": lambda r: r.first_s / r.full_s,
    "second_ttft": lambda r: r.second_s / r.full_s,
    "work": lambda r: (r.first_s + r.background_s) / r.full_s,
    "first_flops": lambda r: r.first_flops / r.full_flops,
    "work_flops": lambda r: (r.first_flops + r.background_flops) / r.full_flops,
    "second_flops": lambda r: r.second_flops / r.full_flops,
    "first_kl": lambda r: r.first_kl,
    "second_kl": lambda r: r.second_kl,
    "same": lambda r: float(r.same),
    "first_agrees": lambda r: float(r.first_agrees),
    "second_agrees": lambda r: float(r.second_agrees),
}


def summary(prompts: Sequence[Prompt], file: RecordFile[Record]) -> list[dict[str, Any]]:
    """Means with 95 % intervals, by method and state of the store, over the prompts that have the
    records of both modes."""
    out = []
    for method in METHODS.values():
        for stored in STORED:
            names = [configuration(method, stored, cold) for cold in MODES]
            keys = [p.key for p in prompts if all((p.key, name) in file for name in names)]
            if not keys:
                continue
            bootstrap = Bootstrap(len(keys))
            for name, cold in zip(names, MODES, strict=True):
                records = [file[key, name] for key in keys]
                rows = {f: bootstrap.mean([of(r) for r in records]) for f, of in FIGURES.items()}
                out.append(
                    {
                        "method": method.name,
                        "stored": stored,
                        "cold": cold,
                        "prompts": len(keys),
                        "tokens": statistics.mean(r.tokens for r in records),
                        "full_prefill_s": statistics.mean(r.full_s for r in records),
                        **{f: [row.mean, row.low, row.high] for f, row in rows.items()},
                    }
                )
    return out


COLUMNS = {
    "first_ttft": "TTFT, first",
    "second_ttft": "TTFT, second",
    "work": "work until stored",
    "work_flops": "operations until stored",
    "first_kl": "KL, first",
    "second_kl": "KL, second",
    "same": "both answers the same",
    "first_agrees": "full prefill's answer, first",
    "second_agrees": "second",
}


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The summary as Markdown."""
    head = ["method", "stored before", "prompts", "cold", *COLUMNS.values()]
    tokens = statistics.mean(row["tokens"] for row in rows)
    full_s = statistics.mean(row["full_prefill_s"] for row in rows)
    lines = [
        f"Prompts of {tokens:.0f} tokens on average, whose full prefill takes {full_s:.2f} CPU "
        "seconds. TTFT, work and operations are shares of the prompt's full prefill; means with "
        "95 % intervals.",
        "",
        "| " + " | ".join(head) + " |",
        "|" + "---|" * len(head),
    ]
    for row in rows:
        cells = [_cell(column, Estimate(*row[column])) for column in COLUMNS]
        names = [row["method"], row["stored"], str(row["prompts"]), f"`{row['cold']}`"]
        lines.append("| " + " | ".join([*names, *cells]) + " |")
    return "\n".join(lines) + "\n"


def _cell(column: str, value: Estimate) -> str:
    if column == "same" or column.endswith("agrees"):
        return f"{value.mean:.0%}"
    return f"{value.mean:.3f} ({value.low:.3f}–{value.high:.3f})"


def write(
    out: Path,
    decoder: DecoderModel,
    given: argparse.Namespace,
    prompts: Sequence[Prompt],
    file: RecordFile[Record],
) -> None:
    """Result and table of what has been measured so far."""
    rows = summary(prompts, file)
    result = {
        "what": "cold: in_context and as_stored",
        "model": given.model.name,
        "task": prompts[0].task,
        "threads": given.threads,
        "dtype": str(decoder.dtype).removeprefix("torch."),
        "answer_tokens": ANSWER_TOKENS,
        "environment": describe(),
        "rows": rows,
    }
    out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    if rows:
        out.with_suffix(".md").write_text(table(rows) + provenance(result), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.costs.cold",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", type=Path, required=True, help="a Hugging Face model folder")
    parser.add_argument("--prompts", type=Path, required=True, help="JSONL")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=["question_scout"])
    parser.add_argument("--samples", type=int, default=30)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/real/cold.json"))
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    prompts = of_file(given.model, given.prompts)[: given.samples]
    file = RecordFile(given.out.with_suffix(".jsonl"), Record)
    file.load()
    decoder = load_model(str(given.model))
    methods = [METHODS[name] for name in given.methods]
    for stored in STORED:
        for number, prompt in enumerate(prompts, start=1):
            measure(decoder, prompt, methods, stored, file)
            print(f"{stored} stored, prompt {number} of {len(prompts)} done", flush=True)
            write(given.out, decoder, given, prompts, file)


if __name__ == "__main__":
    main()
