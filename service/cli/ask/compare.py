"""`kvstitch ask --compare`: asks one question with several methods, full prefill first.

The requests run one after another, so that none slows another down. A later method finds in the
memory tier what an earlier one has loaded; the tier column shows it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.columns import Columns
from rich.panel import Panel
from rich.text import Text

from kvstitch.client import Client, errors
from kvstitch.client.options import GenerateOptions
from kvstitch.client.results import MethodInfo
from service.cli.ask import answer_tables
from service.cli.output import console, emit, milliseconds, plain, table
from service.cli.service_client import WrongArgument, message_of

FULL_PREFILL = "vanilla"


@dataclass(frozen=True)
class Outcome:
    """The result of one method, or why there is none."""

    label: str
    result: Mapping[str, Any] | None
    error: str = ""


def compare(
    client: Client,
    question: str,
    options: GenerateOptions,
    names: Sequence[str],
    ratio: float | None,
    *,
    as_json: bool,
) -> int:
    """Ask with full prefill and with every method of `names`.

    Args:
        client: Of the service.
        question: To be asked.
        options: Of the request, without fusion.
        names: Methods, each NAME or NAME:RATIO.
        ratio: For methods that have a ratio and were named without one.
        as_json: Print JSON instead of tables.

    Returns:
        0; 1 if a method failed.
    """
    offered = {info.name: info for info in client.methods().fusion}
    fusions = [{"method": FULL_PREFILL}]
    for text in names:
        fusion = _fusion(text, offered, ratio)
        if fusion not in fusions:
            fusions.append(fusion)
    outcomes = [_ask(client, question, options, fusion) for fusion in fusions]
    if as_json:
        emit(
            {
                "question": question,
                "results": [
                    {"fusion": fusion, "result": found.result, "error": found.error or None}
                    for fusion, found in zip(fusions, outcomes, strict=True)
                ],
            }
        )
    else:
        _show(outcomes)
    return 1 if any(found.result is None for found in outcomes) else 0


def _fusion(text: str, offered: Mapping[str, MethodInfo], ratio: float | None) -> dict[str, Any]:
    name, colon, own = text.partition(":")
    if name not in offered:
        known = ", ".join(sorted(offered))
        raise WrongArgument(
            f"--compare {name}: known methods: {known}", code="unknown_method", field="compare"
        )
    if colon:
        try:
            return {"method": name, "ratio": float(own)}
        except ValueError:
            raise WrongArgument(
                f"--compare {text}: the ratio is not a number", field="compare"
            ) from None
    takes = "ratio" in offered[name].parameters
    return {"method": name, "ratio": ratio} if takes and ratio is not None else {"method": name}


def _ask(
    client: Client, question: str, options: GenerateOptions, fusion: dict[str, Any]
) -> Outcome:
    label = fusion["method"] + (f":{fusion['ratio']:g}" if "ratio" in fusion else "")
    try:
        # What an earlier prompt left would hide what the method costs.
        asked: GenerateOptions = {**options, "fusion": fusion, "prefix_cache": False}
        return Outcome(label, client.generate(question, **asked).raw)
    except errors.ServiceError as error:
        return Outcome(label, None, message_of(error))


def _show(outcomes: Sequence[Outcome]) -> None:
    full = outcomes[0].result
    shown = table(
        "method", "TTFT", "of full", "TPOT", "cached", "recomputed", "operations", "tiers",
        "answer", numbers=("TTFT", "of full", "TPOT", "cached", "recomputed", "operations"),
    )  # fmt: skip
    for found in outcomes:
        shown.add_row(*_row(found, full))
    out = console()
    out.print(shown)
    panels = [
        Panel(
            Text(plain(found.result["text"]) if found.result else plain(found.error)),
            title=Text(found.label),
            title_align="left",
        )
        for found in outcomes
    ]
    out.print(Columns(panels, equal=True, expand=True))
    if full is not None:
        for cited in full["citations"]:
            out.print(plain(f"[{cited['index']}] {cited['title'] or cited['doc_id']}"))


def _row(found: Outcome, full: Mapping[str, Any] | None) -> tuple[str, ...]:
    result = found.result
    if result is None:
        return (found.label, *["-"] * 7, "failed")
    timing, usage, cache = result["timing"], result["usage"], result["cache"]
    tiers = Counter(document["tier"] for document in cache["documents"])
    if full is None:
        relative, answer = "-", "-"
    else:
        relative = f"{timing['ttft_s'] / full['timing']['ttft_s']:.2f}"
        same = result["text"] == full["text"]
        answer = "the reference" if result is full else "the same" if same else "another"
    return (
        answer_tables.method(result),
        milliseconds(timing["ttft_s"]),
        relative,
        milliseconds(timing["tpot_s"]),
        f"{usage['prompt_tokens_details']['cached_tokens']}/{usage['prompt_tokens']}",
        str(cache["recomputed_tokens"]),
        answer_tables.share(cache["flops"], cache["full_prefill_flops"]),
        ", ".join(f"{n} {tier}" for tier, n in sorted(tiers.items())),
        answer,
    )
