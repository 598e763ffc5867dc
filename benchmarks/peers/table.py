"""Makes the page of a result: ratios first, then times, answers and costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean

from benchmarks.peers.asking import Sample
from benchmarks.peers.results import Result
from benchmarks.peers.servers.kvstitch import VANILLA
from benchmarks.peers.servers.vllm import NAME as VLLM
from benchmarks.peers.workloads import WORKLOADS
from loadtest.measurement.percentiles import percentile

NONE = "–"
CLOSE = 1.1
"""Times that differ by less are called the same."""


def page(result: Result) -> str:
    """The whole Markdown page."""
    parts = [
        "# kvstitch beside other servers\n",
        _conditions(result),
        "## TTFT\n",
        ratios(result),
        "Median in milliseconds, in brackets the quartiles:\n",
        _times(result, lambda s: s.ttft_s),
        "## TPOT\n",
        "Milliseconds per token after the first:\n",
        _times(result, lambda s: s.tpot_s),
        "## Answers\n",
        f"Share of the answers that are, word for word, those of {VANILLA}:\n",
        _agreement(result),
        "## Work and memory\n",
        _costs(result),
    ]
    return "\n".join(parts)


def ratios(result: Result) -> str:
    """The table of TTFT ratios, with who was left out and what failed."""
    base = base_of(result.names)
    if base is None:
        return "Nothing was measured.\n"
    header = [f"TTFT over {base}'s", "prompts", *result.names, "ahead"]
    rows = [_row(result, workload, base) for workload in result.workloads]
    out = table(header, rows)
    out += (
        "\nMedian of the ratios prompt by prompt, in brackets the quartiles. Ahead: the fastest, "
        "and who is within a tenth of it.\n"
    )
    return out + _missing(result)


def base_of(names: Sequence[str]) -> str | None:
    """vLLM if it was measured, else kvstitch's full prefill, else the first."""
    for name in (VLLM, VANILLA, *names):
        if name in names:
            return name
    return None


def _row(result: Result, workload: str, base: str) -> list[str]:
    measured = {name: result.of(name, workload) for name in result.names}
    reference = measured[base]
    cells, medians = [], {}
    for name, samples in measured.items():
        found = ratios_of(samples, reference)
        cells.append(quartiles(found, 1.0, "{:.2f}"))
        if found:
            medians[name] = percentile(found, 50)
    return [WORKLOADS[workload], str(len(reference)), *cells, _ahead(medians)]


def _ahead(medians: dict[str, float]) -> str:
    """The fastest, and who is so close that this run does not tell them apart."""
    if not medians:
        return NONE
    close = [name for name, median in medians.items() if median <= CLOSE * min(medians.values())]
    return "all the same" if len(close) == len(medians) > 1 else ", ".join(close)


def ratios_of(samples: dict[str, Sample], reference: dict[str, Sample]) -> list[float]:
    """Their TTFT over that of the others, prompt by prompt."""
    return [
        mine.ttft_s / other.ttft_s
        for key, mine in samples.items()
        if (other := reference.get(key)) and mine.ttft_s is not None and other.ttft_s
    ]


def _times(result: Result, value: Callable[[Sample], float | None]) -> str:
    rows = []
    for workload in result.workloads:
        cells = []
        for name in result.names:
            samples = result.of(name, workload).values()
            found = [v for sample in samples if (v := value(sample)) is not None]
            cells.append(quartiles(found, 1000.0, "{:.0f}"))
        rows.append([WORKLOADS[workload], *cells])
    return table(["", *result.names], rows)


def _agreement(result: Result) -> str:
    rows = []
    for workload in result.workloads:
        full = result.of(VANILLA, workload)
        cells = []
        for name in result.names:
            mine = result.of(name, workload)
            same = [mine[key].text == full[key].text for key in mine if key in full]
            cells.append(f"{fmean(same):.0%}" if same else NONE)
        rows.append([WORKLOADS[workload], *cells])
    return table(["", *result.names], rows)


def _costs(result: Result) -> str:
    work = []
    for workload in result.workloads:
        cells = []
        for name in result.names:
            samples = result.of(name, workload).values()
            found = [s.work_s for s in samples if s.work_s is not None]
            cells.append(quartiles(found, 1.0, "{:.1f}"))
        work.append([f"processor seconds: {WORKLOADS[workload]}", *cells])
    before = [_known(result.stored_s, name) for name in result.names]
    memory = [_known(result.memory_mib, name) for name in result.names]
    rows = [*work, ["seconds for the corpus beforehand", *before], ["memory, MiB", *memory]]
    return table(["", *result.names], rows) + (
        "\nProcessor seconds count until the server is at rest: kvstitch stores new documents "
        "after the answer.\n"
    )


def _conditions(result: Result) -> str:
    about = result.conditions
    machine = about["environment"]
    lines = [
        f"{about['model']}, {about['threads']} threads and {about['cache_mib']} MiB "
        "for KV for every server, one prompt at a time, "
        f"up to {about['documents']} documents a prompt, {about['corpus']} in the corpus, "
        f"answers of at most {about['max_tokens']} tokens, seed {about['seed']}. {_tokens(result)}",
        f"{machine['cpu']}, {machine['cores']} cores, Python {machine['python']}, commit "
        f"{machine['commit']}{' with uncommitted changes' if machine['uncommitted'] else ''}.",
        _load(result),
    ]
    servers = [[name, a.version, a.settings] for name, a in result.about.items()]
    return "\n\n".join(lines) + "\n\n" + table(["server", "version", "settings"], servers)


def _tokens(result: Result) -> str:
    lengths = [len(prompt.ids) for prompt in result.prompts]
    return f"Prompts of {min(lengths)} to {max(lengths)} tokens." if lengths else ""


def _load(result: Result) -> str:
    if not result.load:
        return ""
    return (
        f"Load average before the rounds: {min(result.load):g} to {max(result.load):g}. One server "
        "computes at a time; what is above 2 comes from other programs on the machine."
    )


def _missing(result: Result) -> str:
    out = "".join(f"\n{name} was left out: {why}.\n" for name, why in result.absent.items())
    if result.ended:
        out += f"\nThe run ended early: {result.ended}\n"
    failed = result.failures()
    if failed:
        out += f"\n{len(failed)} requests failed and are not counted:\n\n"
        out += "".join(f"- prompt {s.prompt}, {s.contestant}: {s.error}\n" for s in failed)
    return out


def _known(values: dict[str, float], name: str) -> str:
    """A whole number; a process that was gone holds no memory, which says nothing about it."""
    return f"{values[name]:.0f}" if values.get(name) else NONE


def quartiles(values: Sequence[float], scale: float, form: str) -> str:
    """Median and quartiles of the scaled values, each in this form."""
    if not values:
        return NONE
    low, middle, high = (form.format(scale * percentile(values, q)) for q in (25, 50, 75))
    return f"{middle} [{low}, {high}]"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
