"""Writes tables of docs/metrics.md, docs/openai.md, docs/models.md, docs/configuration.md and of
the pages of plugins that have settings from the code.

python -m scripts.docs_tables            write them
python -m scripts.docs_tables --check    fail if a page is out of date
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from service.gateway.http.openai import field_table
from service.gateway.http.openai.field_table import FieldRule, Rules
from service.plugins import registered
from service.settings import Settings
from service.settings.loading import is_reloadable
from service.shared import metrics
from service.shared.metrics import WORKER_LABEL, Declared

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


TABLES: dict[str, Rules] = {
    "/v1/chat/completions": field_table.CHAT,
    "/v1/completions": field_table.COMPLETION,
    "/v1/responses": field_table.RESPONSES,
    "/v1/embeddings": field_table.EMBEDDINGS,
    "A message of a chat": field_table.MESSAGE,
    "A part of a message's content": field_table.CONTENT_PART,
    "A tool": field_table.TOOL,
    "Its function": field_table.FUNCTION,
    "stream_options": field_table.STREAM_OPTIONS,
    "response_format": field_table.RESPONSE_FORMAT,
    "structured_outputs": field_table.STRUCTURED_OUTPUTS,
    "An item of the input of /v1/responses": field_table.INPUT_ITEM,
    "text of /v1/responses": field_table.TEXT_OPTIONS,
}


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
    for title, rules in TABLES.items():
        yield f"### {title}\n"
        same = [] if rules is _CHAT else [n for n in sorted(rules) if rules[n] == _CHAT.get(n)]
        absent = sorted(_CHAT.keys() - rules.keys())
        if len(same) > len(absent):
            yield f"As for chats, without {_list(absent)}, and:\n"
        elif same:
            yield f"As for chats: {_list(same)}.\n"
        for treatment in ("honoured", "noted", "refused"):
            rows: dict[str, list[str]] = {}
            for name, rule in sorted(rules.items()):
                if rule.treatment == treatment and name not in same:
                    rows.setdefault(rule.why, []).append(_field(name, rule))
            if rows:
                yield from (f"| {treatment} | |", "|---|---|")
                yield from (f"| {', '.join(names)} | {why} |" for why, names in rows.items())
                yield ""


_CHAT = field_table.CHAT


def _list(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _field(name: str, rule: FieldRule) -> str:
    """Return a field with the values of it that are accepted without a word."""
    harmless = " ".join(f"`{json.dumps(value)}`" for value in rule.harmless)
    return f"`{name}`" + (f" ({harmless})" if harmless else "")


def models_page(page: str) -> str:
    """Return docs/models.md, `page`, with a row per family: what it is, how it decodes, and which
    GGUF files hold it."""
    from kvstitch_gguf.gguf_families import architectures_of
    from service.worker.model.families import family_decoder  # which needs torch
    from service.worker.model.supported import FAMILIES

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
