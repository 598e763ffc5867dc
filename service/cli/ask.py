"""`kvstitch ask`: streams an answer, then shows its sources; with --verbose also what it cost.

With --compare it asks one question with several methods, full prefill first. The requests run one
after another, so that none slows another down. A later method finds in the memory tier what an
earlier one has loaded; the tier column shows it.
"""

import argparse
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

from rich.live import Live
from rich.text import Text

from kvstitch.client import Client, Done, Sources, Token, errors
from kvstitch.client.options import GenerateOptions
from kvstitch.client.sync_client import AnswerStream
from kvstitch.records.answers import MethodInfo
from kvstitch.service.cli import answer_tables
from kvstitch.service.cli.options import (
    WrongArgument,
    add_client_options,
    client,
    message_of,
    parse_pairs,
)
from kvstitch.service.cli.output import console, emit, emit_line, plain

FULL_PREFILL = "vanilla"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("question", metavar="QUESTION")
    add("--method", help="exact (full prefill), balanced (the default), fastest, or the name of a "
        "paper's method (docs/methods.md); auto: see plugins/tune/README.md")  # fmt: skip
    add("--profile", choices=("fast", "balanced", "exact"), help="the older form of --method")
    add("--ratio", type=float, help="share of the prompt to recompute, where the method has it")
    add("--top-k", type=int, help="passages to answer from")
    add("--collection", help="search there (default: default)")
    add("--document", action="append", metavar="DOC_ID", help="answer from this document only")
    add("--filter", action="append", metavar="NAME=VALUE", help="only documents with this "
        "metadata; or a JSON object such as '{\"year\": {\"gte\": 2020}}'")  # fmt: skip
    add("--retrieval", choices=("dense", "sparse", "hybrid"), help="by meaning, words, or both")
    add("--quality", type=float, metavar="SHARE", help="with --method auto: the cheapest that was "
        "measured to agree with full prefill that often, such as 0.95")  # fmt: skip
    add("--cold", choices=("in_context", "as_stored"), help="how chunks that are not stored are "
        "computed: with the prompt, or alone, so that later answers are the same")  # fmt: skip
    add("--exact-below", type=float, metavar="NATS", help="the answer is full prefill's from the "
        "first token that leads by less")  # fmt: skip
    add("--adapter", help="the LoRA adapter that answers (default: the model itself)")
    add("--no-prefix-cache", dest="prefix_cache", action="store_const", const=False,
        help="compute the whole prompt, even if one like it was answered before")  # fmt: skip
    add("--max-tokens", type=int)
    add("--verbose", action="store_true", help="then what happened to every document: tiers, "
        "bytes, tokens computed anew, times, plans")  # fmt: skip
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--explain", action="store_true", help="a dry run: what would be loaded and "
                     "computed, and the expected TTFT")  # fmt: skip
    how.add_argument("--compare", nargs="+", metavar="METHOD", help="the same question under "
                     "these methods (NAME or NAME:RATIO) and full prefill")  # fmt: skip
    how.add_argument("--stream", action="store_true", help="with --json: every event as a line")
    add_client_options(parser)
    parser.set_defaults(command=run)


def run(args: argparse.Namespace) -> int:
    """Ask one question; 1 if a method of --compare failed."""
    options = _options(args)
    with client(args) as service:
        if args.compare is not None:
            return _compare(service, args, options)
        fusion: dict[str, Any] = {} if args.method is None else {"method": args.method}
        if args.quality is not None:
            fusion = {"method": "auto", **fusion, "quality": args.quality}
        if args.ratio is not None:
            # Of the service's own method where none is named.
            fusion = {**(fusion or service.methods().defaults["fusion"]), "ratio": args.ratio}
        if fusion:
            options["fusion"] = fusion
        if args.explain:
            found = service.explain(args.question, **options).raw
            if args.json:
                emit(found)
            else:
                answer_tables.show_forecast(console(), found)
        elif args.json and not args.stream:
            emit(service.generate(args.question, **options).raw)
        else:
            if not args.json:
                options["include_text"] = True
            with service.stream(args.question, **options) as events:
                if args.json:
                    _emit(events)
                else:
                    _show(events, verbose=args.verbose)
        return 0


def _options(args: argparse.Namespace) -> GenerateOptions:
    return {
        "top_k": args.top_k,
        "documents": args.document,
        "max_tokens": args.max_tokens,
        "collection": args.collection,
        "retrieval": args.retrieval,
        "adapter": args.adapter,
        "cold": args.cold,
        "exact_below": args.exact_below,
        "prefix_cache": args.prefix_cache,
        "profile": args.profile,
        "filter": parse_pairs(args.filter, "--filter") or None,
    }


def _emit(events: AnswerStream) -> None:
    for event in events:
        data = event.answer.raw if isinstance(event, Done) else event.raw
        emit_line({"event": type(event).__name__.lower(), "data": data})


def _show(events: AnswerStream, *, verbose: bool) -> None:
    """Show the answer: on a terminal while it grows, and once more with its marks when it is whole,
    which is when they are known."""
    out, text, done = console(), "", None
    growing = Live(console=out, auto_refresh=False, transient=True) if out.is_terminal else None
    try:
        with growing or nullcontext():
            for event in events:
                if isinstance(event, Done):
                    done = event.answer
                elif isinstance(event, Token):
                    text += plain(event.text)
                if growing is not None:
                    shown = text or "searching the documents …"
                    if isinstance(event, Sources):
                        shown = f"reading {len(event.citations)} passages …"
                    lines = Text(shown).wrap(out, out.width)[-max(1, out.height - 1) :]
                    growing.update(Text("\n").join(lines), refresh=True)
    finally:
        if done is None and text:
            print(text)  # what there is of an answer that was interrupted
    if done is not None:
        answer_tables.show_answer(out, done, verbose=verbose)


def _compare(client: Client, args: argparse.Namespace, options: GenerateOptions) -> int:
    """Ask with full prefill and with every method of --compare."""
    methods = client.methods()
    offered = {info.name: info for info in methods.fusion}
    fusions = [{"method": FULL_PREFILL}]
    for text in args.compare:
        fusion = _fusion(text, offered, methods.names, args.ratio)
        if fusion not in fusions:
            fusions.append(fusion)
    outcomes = [_outcome(client, args.question, options, fusion) for fusion in fusions]
    if args.json:
        results = [
            {"fusion": fusion, "result": found.result, "error": found.error or None}
            for fusion, found in zip(fusions, outcomes, strict=True)
        ]
        emit({"question": args.question, "results": results})
    else:
        answer_tables.show_comparison(outcomes)
    return 1 if any(found.result is None for found in outcomes) else 0


def _fusion(
    text: str,
    offered: Mapping[str, MethodInfo],
    named: Mapping[str, Mapping[str, Any]],
    ratio: float | None,
) -> dict[str, Any]:
    name, colon, own = text.partition(":")
    fusion = dict(named.get(name, {"method": name}))
    if fusion["method"] not in offered:
        known = f"--compare {name}: known methods: {', '.join([*named, *sorted(offered)])}"
        raise WrongArgument(known, code="unknown_method", field="compare")
    if colon:
        try:
            ratio = float(own)
        except ValueError:
            wrong = f"--compare {text}: the ratio is not a number"
            raise WrongArgument(wrong, field="compare") from None
    elif "ratio" not in offered[fusion["method"]].parameters:
        ratio = None
    return fusion if ratio is None else {**fusion, "ratio": ratio}


def _outcome(
    client: Client, question: str, options: GenerateOptions, fusion: dict[str, Any]
) -> answer_tables.Outcome:
    label = fusion["method"] + (f":{fusion['ratio']:g}" if "ratio" in fusion else "")
    try:
        # What an earlier prompt left would hide what the method costs.
        asked: GenerateOptions = {**options, "fusion": fusion, "prefix_cache": False}
        return answer_tables.Outcome(label, client.generate(question, **asked).raw)
    except errors.ServiceError as error:
        return answer_tables.Outcome(label, None, message_of(error))
