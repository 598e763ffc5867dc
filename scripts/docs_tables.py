"""Writes tables of docs/metrics.md, docs/openai.md, docs/models.md, docs/configuration.md and of
the pages of plugins that have settings from the code.

python -m scripts.docs_tables            write them
python -m scripts.docs_tables --check    fail if a page is out of date
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from kvstitch.service.gateway.http.openai.field_table import Rules
from kvstitch.service.plugins import registered
from kvstitch.service.settings import Settings
from kvstitch.service.settings.loading import is_reloadable
from kvstitch.service.shared import metrics
from kvstitch.service.shared.metrics import WORKER_LABEL, Declared
from scripts.openai_fields import TABLES

DOCS = Path(__file__).parents[1] / "docs"
METRICS_PAGE, OPENAI_PAGE, MODELS_PAGE, SETTINGS_PAGE = (
    DOCS / "metrics.md",
    DOCS / "openai.md",
    DOCS / "models.md",
    DOCS / "configuration.md",
)
REMEDY = "{page} is not what the code declares: run python -m scripts.docs_tables"

HEAD = f"""# Metrics

Made by `python -m scripts.docs_tables` from `service/shared/metrics.py`; `make check` compares.

`GET /metrics` (scope `metrics` where keys are in use) shows both processes. The worker sends its
numbers about once a second, and the gateway shows them with the label `{WORKER_LABEL}`; while the
worker is down they are absent. Sum replicas over `instance`, except what they share.

Units are seconds, bytes and tokens, hit rate is by token, and no label ever holds a tenant, a
document or a question. Histogram borders contain the limits of the [SLO](operations.md#the-slo).
OpenTelemetry calls `kvstitch_request_ttft_seconds` `gen_ai.server.time_to_first_token`, and
`kvstitch_request_tpot_seconds` `gen_ai.server.time_per_output_token`. The stage `flush` is time the
client took for the text it was sent.
"""


def metrics_page() -> str:
    """Return docs/metrics.md."""
    return "\n".join(
        [
            HEAD,
            *_table("Counted by the gateway", metrics.GATEWAY_METRICS.values()),
            *_table("Counted by the worker", metrics.WORKER_METRICS.values()),
            "## Borders of histograms\n",
            "| histogram | upper bounds |",
            "|---|---|",
            *(
                f"| `{m.name}` | {' '.join(f'{bound:g}' for bound in m.buckets)} |"
                for m in metrics.METRICS.values()
                if m.kind == "histogram"
            ),
            "",
        ]
    )


def _table(title: str, declared: Iterable[Declared]) -> list[str]:
    rows = [f"| `{m.name}` | {m.kind} | {_labels(m)} | {m.help} |" for m in declared]
    return [f"## {title}\n", "| name | kind | labels | what |", "|---|---|---|---|", *rows, ""]


def _labels(metric: Declared) -> str:
    return "; ".join(
        f"`{name}`" + (f": {', '.join(values)}" if values else "")
        for name, values in metric.labels.items()
    )


def openai_page(page: str) -> str:
    """Return docs/openai.md, `page`, with its tables made anew."""
    return _with_tables(page, "fields", "\n" + "\n".join(_field_tables()) + "\n")


def _with_tables(page: str, name: str, tables: str) -> str:
    """Return a page with other tables between the comments `name` and `end of name`."""
    begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
    before, found, rest = page.partition(begin)
    _, closed, after = rest.partition(end)
    assert found and closed, f"the page has no place for {name}"
    return f"{before}{begin}{tables}{end}{after}"


def _field_tables() -> Iterator[str]:
    """Yield the tables of every object, one for each treatment; fields of which the same is true
    share a row, and what is as for chats is not said again."""
    tables = {title: _all_fields(*table) for title, table in TABLES.items()}
    chat = tables["/v1/chat/completions"]
    for title, rules in tables.items():
        yield f"### {title}\n"
        same = [] if rules is chat else [n for n in sorted(rules) if rules[n] == chat.get(n)]
        absent = sorted(chat.keys() - rules.keys())
        if len(same) > len(absent):
            yield f"As for chats, without {_list(absent)}, and:\n"
        elif same:
            yield f"As for chats: {_list(same)}.\n"
        for treatment in ("honoured", "noted", "refused"):
            rows: dict[str, list[str]] = {}
            for name, (treated, why, harmless) in sorted(rules.items()):
                if treated == treatment and name not in same:
                    rows.setdefault(why, []).append(_field(name, harmless))
            if rows:
                yield from (f"| {treatment} | |", "|---|---|")
                yield from (f"| {', '.join(names)} | {why} |" for why, names in rows.items())
                yield ""


def _all_fields(
    honoured: Mapping[str, str], others: Rules
) -> dict[str, tuple[str, str, tuple[Any, ...]]]:
    """Return the treatment of every field, why, and its harmless values."""
    rules = {name: (rule.treatment, rule.why, rule.harmless) for name, rule in others.items()}
    return {**rules, **{name: ("honoured", does, ()) for name, does in honoured.items()}}


def _list(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _field(name: str, harmless: Iterable[Any]) -> str:
    """Return a field with the values of it that are accepted without a word."""
    values = " ".join(f"`{json.dumps(value)}`" for value in harmless)
    return f"`{name}`" + (f" ({values})" if values else "")


def models_page(page: str) -> str:
    """Return docs/models.md, `page`, with a row per family: what it is, how it decodes, and which
    GGUF files hold it."""
    from kvstitch.service.worker.model.families import family_decoder  # which needs torch
    from kvstitch.service.worker.model.supported import FAMILIES
    from kvstitch_gguf.gguf_families import architectures_of

    rows = [
        "| `model_type` | models, and what is different about them | a decode step on a CPU "
        "| architecture of GGUF files |",
        "|---|---|---|---|",
    ]
    for name in sorted(FAMILIES):
        family = family_decoder(name)
        said = " ".join((family.__doc__ or "").split())
        decodes = "one kernel call" if family.has_plain_layers else "layer by layer"
        files = ", ".join(f"`{found}`" for found in architectures_of(name)) or "none"
        rows.append(f"| `{name}` | {said} | {decodes} | {files} |")
    return _with_tables(page, "families", "\n".join(rows) + "\n")


def settings_page(page: str, settings: type[BaseModel] = Settings) -> str:
    """Return docs/configuration.md or a plugin's page, `page`, with a row per setting."""
    rows = ["| setting | default | |", "|---|---|---|"]
    for name in sorted(settings.model_fields):
        field = settings.model_fields[name]
        mark = " ↻" if is_reloadable(name, settings) else ""
        rows.append(f"| `{name}`{mark} | {_default(field)} | {field.description or ''} |")
    return _with_tables(page, "settings", "\n".join(rows) + "\n")


def _default(field: Any) -> str:
    if field.default_factory is not None:  # where people keep such things
        return "`" + " ".join(field.default_factory.__doc__.split("`")[1:2]) + "`"
    value = field.default
    if value is None or value == "":
        return "none"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def main() -> None:
    pages = {
        METRICS_PAGE: metrics_page(),
        OPENAI_PAGE: openai_page(OPENAI_PAGE.read_text(encoding="utf-8")),
        MODELS_PAGE: models_page(MODELS_PAGE.read_text(encoding="utf-8")),
        SETTINGS_PAGE: settings_page(SETTINGS_PAGE.read_text(encoding="utf-8")),
    }
    for name, plugin in registered().items():
        path = DOCS.parent / "plugins" / name.removeprefix("kvstitch_") / "README.md"
        if hasattr(plugin, "settings") and path.is_file():
            pages[path] = settings_page(path.read_text(encoding="utf-8"), plugin.settings())
    for path, text in pages.items():
        if "--check" not in sys.argv[1:]:
            path.write_text(text, encoding="utf-8")
        elif path.read_text(encoding="utf-8") != text:
            sys.exit(REMEDY.format(page=path.relative_to(DOCS.parent)))


if __name__ == "__main__":
    main()
