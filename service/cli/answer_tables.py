"""Prints answers, dry runs and comparisons as tables."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from textwrap import shorten
from typing import Any

from rich.columns import Columns
from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from kvstitch.records.answers import Answer, Citation
from kvstitch.service.cli.output import console as new_console
from kvstitch.service.cli.output import milliseconds, plain, size, table

TITLE_CHARS = 40
_HEADING = re.compile("^#{1,6} +(.+)$", re.MULTILINE)
NUMBERS = ("#", "score", "tokens", "read", "stored", "recomputed", "load", "expected load")


def show_answer(console: Console, answer: Answer, *, verbose: bool) -> None:
    """Print the text with marks, then a line for every source, with a star where the answer is from
    it; with `verbose` what happened to each, else how long it took."""
    # Imported here, because it takes a third of a second, in which text is read.
    from kvstitch.service.gateway.answers.attributor import with_marks

    print(plain(with_marks(answer.text, answer.attributions or [])[0]))
    if answer.citations:
        print()
    for cited, name in zip(answer.citations, source_names(answer.citations), strict=True):
        star, style = ("*", "bold") if cited.used else (" ", "dim")
        line = Text(plain(f"{star} [{cited.index}] {name}{_quote(cited)}"), style)
        if console.is_terminal:  # elsewhere a line may be of any length
            line.truncate(console.width, overflow="ellipsis")
        console.print(line, soft_wrap=True)
    if answer.citations and answer.attributions and not any(c.used for c in answer.citations):
        print("No sentence of the answer stands in these passages.")
    if verbose:
        _show_result(console, answer.raw)
    else:
        timing = answer.timing
        print(f"\n{timing.ttft_s:.2f} s to the first token, {timing.total_s:.2f} s in all")
        _warn(console, answer.warnings)


def source_names(citations: Sequence[Citation]) -> list[str]:
    """Return what tells passages apart: the document, unless the line before is of it, heading and
    page; of several with the same heading and page the characters, too."""
    places = [(cited.doc_id, _place_in(cited)) for cited in citations]
    out, before = [], ""
    for cited, (doc_id, place) in zip(citations, places, strict=True):
        if not place or places.count((doc_id, place)) > 1:
            place += f" characters {cited.char_start}-{cited.char_end}"
        title = shorten(cited.title, TITLE_CHARS, placeholder=" …")
        document = f"{title} ({doc_id}) " if title else f"{doc_id} "
        out.append(f"{'' if doc_id == before else document}> {place.strip()}")
        before = doc_id
    return out


def _place_in(cited: Citation) -> str:
    heading = cited.heading
    if cited.text is not None and cited.quote_start is not None:
        # A passage may begin at the end of a section: what supports the answer stands below this.
        own = _HEADING.findall(cited.text[: cited.quote_start - _first_char(cited)])
        heading = own[-1].strip() if own else heading
    heading = heading if heading != cited.title else None
    page = f"page {cited.page}" if cited.page and cited.page.isdigit() else cited.page
    return ", ".join(filter(None, [heading, page]))


def _first_char(cited: Citation) -> int:
    """Return the place of a text's first character, were what it repeats in the document, too."""
    return cited.char_end - len(cited.text or "")


def _quote(cited: Citation) -> str:
    """Return the sentence that supports the answer."""
    if cited.text is None or cited.quote_start is None or cited.quote_end is None:
        return ""
    start, end = cited.quote_start - _first_char(cited), cited.quote_end - _first_char(cited)
    return f': "{" ".join(cited.text[start:end].split())}"'


def _show_result(console: Console, result: Mapping[str, Any]) -> None:
    """Print what happened to every document, then one line of facts."""
    cited = {c["chunk_id"]: c for c in result["citations"]}
    cache = result["cache"]
    shown = table(
        "#", "document", "characters", "score", "tier", "read", "tokens", "recomputed", "load",
        "plan", numbers=NUMBERS,
    )  # fmt: skip
    segments = [cache["system"], *cache["documents"]]
    for segment in segments:
        shown.add_row(*_place(cited, segment), *_segment(segment))
    console.print(shown)
    for segment in segments:
        for problem in segment["problems"]:
            console.print(plain(f"{segment.get('doc_id', 'instructions')}: {problem}"))
    console.print(facts(result))
    _warn(console, result["warnings"])


def show_forecast(console: Console, result: Mapping[str, Any]) -> None:
    """Print what an answer would take."""
    cited = {c["chunk_id"]: c for c in result["citations"]}
    shown = table(
        "#", "document", "characters", "score", "tier", "tokens", "stored", "read", "action",
        "expected load", numbers=NUMBERS,
    )  # fmt: skip
    for segment in [result["system"], *result["documents"]]:
        shown.add_row(
            *_place(cited, segment),
            segment["tier"],
            str(segment["tokens"]),
            size(segment["stored_bytes"]),
            size(segment["load_bytes"]),
            segment["action"],
            milliseconds(segment["load_s"]),
        )
    console.print(shown)
    basis = "measured here" if result["measured"] else "assumed, nothing was measured yet"
    console.print(
        f"nothing was generated · {result['fusion']['method']}: "
        f"{result['recomputed_tokens']} of {result['prompt_tokens']} prompt tokens computed, "
        f"{share(result['flops'], result['full_prefill_flops'])} of a full prefill's operations\n"
        f"expected TTFT {milliseconds(result['expected_ttft_s'])}, full prefill "
        f"{milliseconds(result['full_prefill_ttft_s'])} (speeds {basis}; without a queue)"
    )
    _warn(console, result["warnings"])


@dataclass(frozen=True)
class Outcome:
    """The result of one method, or why there is none."""

    label: str
    result: Mapping[str, Any] | None
    error: str = ""


def show_comparison(outcomes: Sequence[Outcome]) -> None:
    """Print what methods cost beside the first one, and their answers."""
    full = outcomes[0].result
    shown = table(
        "method", "TTFT", "of full", "TPOT", "cached", "recomputed", "operations", "tiers",
        "answer", numbers=("TTFT", "of full", "TPOT", "cached", "recomputed", "operations"),
    )  # fmt: skip
    for found in outcomes:
        shown.add_row(*_comparison_row(found, full))
    out = new_console()
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


def _comparison_row(found: Outcome, full: Mapping[str, Any] | None) -> tuple[str, ...]:
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
        method(result),
        milliseconds(timing["ttft_s"]),
        relative,
        milliseconds(timing["tpot_s"]),
        f"{usage['prompt_tokens_details']['cached_tokens']}/{usage['prompt_tokens']}",
        str(cache["recomputed_tokens"]),
        share(cache["flops"], cache["full_prefill_flops"]),
        ", ".join(f"{n} {tier}" for tier, n in sorted(tiers.items())),
        answer,
    )


def facts(result: Mapping[str, Any]) -> str:
    """Return one line: `TTFT … · TPOT … · tokens from the cache · …`."""
    usage, timing, cache = result["usage"], result["timing"], result["cache"]
    found = [
        f"TTFT {milliseconds(timing['ttft_s'])}",
        f"TPOT {milliseconds(timing['tpot_s'])}",
        f"{usage['prompt_tokens_details']['cached_tokens']}/{usage['prompt_tokens']} prompt tokens "
        "from the cache",
        f"{share(cache['flops'], cache['full_prefill_flops'])} of a full prefill's operations",
        f"{usage['completion_tokens']} tokens",
        method(result),
        result["finish_reason"],
    ]
    exact = cache["exact_from"]
    return " · ".join(found + ([] if exact is None else [f"full prefill's from token {exact + 1}"]))


def method(result: Mapping[str, Any]) -> str:
    """Return the fusion as it was used: `a3 (ratio 0.15)`."""
    ratio = result["cache"]["ratio"]
    return str(result["fusion"]["method"]) + ("" if ratio is None else f" (ratio {ratio:.2g})")


def share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "-"


def _place(citations: Mapping[str, Any], segment: Mapping[str, Any]) -> tuple[str, str, str, str]:
    if "doc_id" not in segment:
        return "", "(instructions)", "", ""
    if (cited := citations.get(segment["chunk_id"])) is None:
        return "?", plain(segment["doc_id"]), "", ""
    name = cited["doc_id"] if not cited["title"] else f"{cited['title']} ({cited['doc_id']})"
    where = f"{cited['char_start']}-{cited['char_end']}"
    return f"[{cited['index']}]", plain(name), where, f"{cited['score']:.3f}"


def _segment(segment: Mapping[str, Any]) -> tuple[str, ...]:
    plan = segment["plan"] or ("load" if segment["tier"] != "cold" else "compute")
    if segment["computed"]:
        plan = f"compute {segment['computed'].replace('_', ' ')}"
    return (
        segment["tier"],
        size(segment["bytes"]),
        str(segment["tokens"]),
        str(segment["rows_recomputed"]),
        milliseconds(segment["load_s"]),
        f"{plan}: {plain(segment['why'])}" if segment["why"] else plan,
    )


def _warn(console: Console, warnings: Sequence[str]) -> None:
    for text in warnings:
        console.print(plain(f"warning: {text}"))
