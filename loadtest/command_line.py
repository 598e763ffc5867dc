"""The command line of `python -m loadtest`, and the objects made from it."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from loadtest.errors import InvalidInput
from loadtest.rate_sweep import StepSettings
from loadtest.reporting.run_summary import Slo
from loadtest.traffic.corpus_reader import read_documents, read_questions
from loadtest.traffic.random_model import ModelShape
from loadtest.traffic.routes import ChatRoute, CorpusDocument, MethodUnderTest, RagRoute, Route
from loadtest.traffic.trace_replay import Trace, TraceBlocks, read_trace
from loadtest.traffic.workloads import Permutator, Zipf, long_document

DEMO = Path(__file__).resolve().parents[1] / "demo"
DEMO_MODEL = DEMO.parent / "service" / "demo_model"


def parser() -> argparse.ArgumentParser:
    """The parser of all arguments."""
    out = argparse.ArgumentParser(
        prog="loadtest",
        description="Open-loop load: rising rates, all methods at each, knees. Without --url a "
        "service is started on a fresh folder and the corpus put into it.",
    )
    out.add_argument("--url", help="a running service; nothing is started or ingested")
    out.add_argument("--api-key", default="", help="bearer token; default: KVSTITCH_API_KEY")
    out.add_argument("--ingest", action="store_true", help="with --url: put the corpus in first")
    out.add_argument("--model", type=Path, help="model folder to serve; default: the demo's")
    out.add_argument("--shape", type=_shape, help="serve random weights, e.g. 512x12")
    out.add_argument("--route", choices=("rag", "chat", "openai"), default="rag")
    out.add_argument(
        "--request", type=json.loads, default={}, help="JSON object merged into each request"
    )
    out.add_argument(
        "--methods",
        nargs="+",
        type=MethodUnderTest.parse,
        default=[MethodUnderTest.parse(name) for name in ("vanilla", "a3", "question_scout")],
        help="NAME or NAME:RATIO; the first is what the others are compared with",
    )
    work = out.add_argument_group("what is asked")
    work.add_argument("--workload", choices=("zipf", "permutator", "trace"), default="zipf")
    work.add_argument("--corpus", type=Path, default=DEMO / "corpus", help=".md folder or JSONL")
    work.add_argument("--questions", type=Path, default=DEMO / "questions.jsonl")
    work.add_argument("--documents", type=int, help="a request's; default 14, permutator 5")
    work.add_argument("--alpha", type=float, default=1.0, help="of Zipf; 0: all alike")
    work.add_argument("--order", choices=("shuffled", "fixed"), default="shuffled")
    work.add_argument("--search", action="store_true", help="the service searches its documents")
    work.add_argument("--words", type=int, default=100, help="permutator: of a document")
    work.add_argument("--system-words", type=int, default=20, help="permutator: of the system text")
    work.add_argument("--permutations", type=int, default=10)
    work.add_argument("--trace", type=Path, help="JSONL, see loadtest/traffic/trace.py")
    work.add_argument("--speed", type=float, default=1.0, help="of the trace")
    work.add_argument("--block-words", type=int, default=60, help="of one hash id of the trace")
    work.add_argument("--max-blocks", type=int, default=12, help="hash ids used of a request")
    work.add_argument("--max-tokens", type=int, default=8)
    when = out.add_argument_group("when")
    when.add_argument(
        "--rates", nargs="+", type=float, help="requests/s; default: by the first method's speed"
    )
    when.add_argument("--step-s", type=float, default=12.0)
    when.add_argument("--warmup-s", type=float, help="not counted; default 2, of a trace 0")
    when.add_argument(
        "--patience-s",
        type=float,
        help="for answers after the last request; default: 1.5 times the longest limit, at least 2",
    )
    when.add_argument("--max-lag-ms", type=float, default=50.0, help="of the generator, p99")
    when.add_argument("--attempts", type=_positive, default=2, help="at a step that lagged")
    when.add_argument("--seed", type=int, default=1)
    good = out.add_argument_group("what is good")
    good.add_argument("--ttft-ms", type=float, help="default: 3 times the first method's, alone")
    good.add_argument("--tpot-ms", type=float)
    good.add_argument("--e2e-ms", type=float)
    good.add_argument("--attainment", type=float, default=0.9, help="share of good at the knee")
    out.add_argument("--out", type=Path, default=Path("build/loadtest"), help="folder of results")
    out.add_argument("--name", default="load", help="of the files")
    out.add_argument("--note", action="append", default=[], help="a line for the report")
    return out


def route(args: argparse.Namespace, model: str) -> Route:
    """The route to load."""
    fields = dict(args.request)
    if args.search:
        fields["top_k"] = args.documents or 14
    if args.route == "rag":
        return RagRoute(fields)
    plain = args.route == "openai"
    return ChatRoute(model if plain else "", plain, fields)


def methods(args: argparse.Namespace) -> list[MethodUnderTest]:
    """The fusion methods to compare; other servers than this service have none."""
    return [MethodUnderTest("as served")] if args.route == "openai" else list(args.methods)


def corpus(args: argparse.Namespace) -> list[CorpusDocument]:
    """The documents to ingest; for the permutator long documents made from the corpus."""
    documents = read_documents(args.corpus)
    if args.workload == "permutator":
        names = [f"long-{number}" for number in range(1, (args.documents or 5) + 1)]
        return [long_document(documents, name, args.words) for name in names]
    return documents


def workload(args: argparse.Namespace) -> Trace | Zipf | Permutator:
    """The requests to send.

    Raises:
        InvalidInput: the arguments or files do not fit together.
        OSError: a file cannot be read.
    """
    questions = read_questions(args.questions)
    if args.workload == "trace":
        if args.trace is None:
            raise InvalidInput("--workload trace needs --trace FILE.jsonl")
        blocks = TraceBlocks(args.block_words, args.max_blocks)
        documents = read_documents(args.corpus)
        return read_trace(
            args.trace,
            documents,
            questions,
            speed=args.speed,
            max_tokens=args.max_tokens,
            blocks=blocks,
        )
    documents = corpus(args)
    if args.workload == "permutator":
        system = long_document(read_documents(args.corpus), "system", args.system_words).text
        return Permutator(documents, questions, args.permutations, system, args.max_tokens)
    count = args.documents or 14
    shuffled = args.order == "shuffled"
    return Zipf(
        documents,
        questions,
        count,
        alpha=args.alpha,
        shuffled=shuffled,
        search=args.search,
        max_tokens=args.max_tokens,
    )


def pattern(args: argparse.Namespace, slo: Slo) -> StepSettings:
    """How each step is run.

    Raises:
        InvalidInput: the durations do not fit together.
    """
    warmup_s = args.warmup_s
    if warmup_s is None:
        warmup_s = 0.0 if args.workload == "trace" else 2.0
    if args.workload != "trace" and warmup_s >= args.step_s:
        raise InvalidInput(f"--warmup-s {warmup_s:g} leaves nothing of --step-s {args.step_s:g}")
    longest_s = slo.longest_s
    patience_s = args.patience_s or max(2.0, 1.5 * longest_s)
    if patience_s < longest_s:
        raise InvalidInput(f"--patience-s {patience_s:g} cuts answers that would still be good")
    max_lag_s = args.max_lag_ms / 1000
    return StepSettings(args.step_s, warmup_s, patience_s, max_lag_s, args.attempts, args.seed)


def slo(args: argparse.Namespace, ttft_s: float) -> tuple[Slo, str]:
    """The SLO and where it comes from; `ttft_s` (seconds) is the limit if none was given."""
    given = [None if ms is None else ms / 1000 for ms in (args.ttft_ms, args.tpot_ms, args.e2e_ms)]
    if any(limit is not None for limit in given):
        return Slo(*given), "as given"
    return Slo(ttft_s), "three times the first method's TTFT without load, rounded up"


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: a whole number from 1 is expected")
    return int(text)


def _shape(text: str) -> ModelShape:
    try:
        return ModelShape.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
