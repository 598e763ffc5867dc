"""Writes the files of a result."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from loadtest.measurement.request_record import RequestRecord
from loadtest.reporting import goodput_plot, markdown_report
from loadtest.reporting.html_page import page


def write(
    folder: Path, name: str, result: Mapping[str, Any], raw: Mapping[str, Sequence[RequestRecord]]
) -> None:
    """Write NAME.json, .records.json.gz, .png, .md and .html, and print the table."""
    folder.mkdir(parents=True, exist_ok=True)
    picture = goodput_plot.goodput(result)
    text = markdown_report.markdown(result, f"{name}.png")
    (folder / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
    (folder / f"{name}.png").write_bytes(picture)
    (folder / f"{name}.md").write_text(text)
    (folder / f"{name}.html").write_text(page(result, text, {"Goodput": picture}))
    samples = {step: [asdict(record) for record in records] for step, records in raw.items()}
    packed = gzip.compress(json.dumps(samples).encode(), mtime=0)
    (folder / f"{name}.records.json.gz").write_bytes(packed)
    print(markdown_report.markdown(result))
    print(f"written: {folder / name}.html, .json, .md, .png, .records.json.gz")
