"""The table of answers with all defaults beside full prefill's, by how many passages are pieces of
one document."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean, median

from benchmarks.common.markdown import percent, table
from benchmarks.quality.served.asking import Record

MANY = 4
"""Passages of one document from which on prompts are shown apart."""
LEGEND = """\
Right: an accepted answer occurs in the generated text, both without case, punctuation and articles.
Lost: full prefill is right and the default is not; won: the other way round. Same: the texts are
equal. TTFT: from the request to the first piece of the answer, the default's over full prefill's of
the same question, median. Found: a passage is of the document that answers.
"""


def page(title: str, records: Sequence[Record]) -> str:
    """Title, table, and both answers of the questions that only one of the two has right."""
    many = [record for record in records if record.of_one_document >= MANY]
    few = [record for record in records if record.of_one_document < MANY]
    rows = [
        _row("all", records),
        _row(f"up to {MANY - 1} passages of one document", few),
        _row(f"{MANY} or more", many),
    ]
    head = ["prompts", "number", "found", "full prefill right", "default right", "lost", "won",
            "same", "TTFT"]  # fmt: skip
    parts = [f"# {title}\n", _about(records), LEGEND, table(head, rows)]
    if values := sorted({value for record in records for value in record.exact}, key=float):
        head = ["exact_below, nats", "prompts", "right", "same", "taken over", "operations",
                "seconds of the answer over full prefill's"]  # fmt: skip
        parts.append(table(head, [_exact_row(value, records) for value in ("0", *values)]))
    differing = [record for record in records if record.default.right != record.full.right]
    if differing:
        answers = [
            [r.question, str(r.of_one_document), _cell(r.full.text), _cell(r.default.text)]
            for r in differing
        ]
        head = ["question", "of one document", "full prefill", "default"]
        parts += ["## Where one of the two is right\n", table(head, answers)]
    return "\n".join(parts)


def _about(records: Sequence[Record]) -> str:
    lengths = sorted(record.full.tokens for record in records)
    methods = sorted({str(record.default.method) for record in records})
    ttft = median(record.full.ttft_s for record in records)
    return (
        f"{len(records)} prompts of {lengths[0]} to {lengths[-1]} tokens (median "
        f"{median(lengths):g}). Default: {', '.join(methods)}. Full prefill's median TTFT is "
        f"{ttft:.2f} s.\n"
    )


def _row(name: str, records: Sequence[Record]) -> list[str]:
    if not records:
        return [name, "0", *["–"] * 7]
    found = sum(r.file in {document for document, _ in r.passages} for r in records)
    return [
        name,
        str(len(records)),
        str(found),
        str(sum(r.full.right for r in records)),
        str(sum(r.default.right for r in records)),
        str(sum(r.full.right and not r.default.right for r in records)),
        str(sum(r.default.right and not r.full.right for r in records)),
        percent(sum(r.default.text.strip() == r.full.text.strip() for r in records) / len(records)),
        f"{median(r.default.ttft_s / r.full.ttft_s for r in records):.2f}",
    ]


def _exact_row(value: str, records: Sequence[Record]) -> list[str]:
    """Of the questions that were asked with this value; 0: those that were with any."""
    if value == "0":
        pairs = [(r.default, r.full) for r in records if r.exact]
    else:
        pairs = [(r.exact[value], r.full) for r in records if value in r.exact]
    return [
        value,
        str(len(pairs)),
        str(sum(one.right for one, _ in pairs)),
        str(sum(one.text.strip() == full.text.strip() for one, full in pairs)),
        str(sum(one.taken_over for one, _ in pairs)),
        f"{mean(one.operations for one, _ in pairs):.3f}",
        f"{mean(one.total_s for one, _ in pairs) / mean(full.total_s for _, full in pairs):.2f}",
    ]


def _cell(text: str) -> str:
    """A text that stands in one cell of a table."""
    line = " ".join(text.split()).replace("|", "\\|")
    return line if len(line) <= 300 else f"{line[:300]}…"
