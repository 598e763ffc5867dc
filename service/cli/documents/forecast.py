"""What an ingest will take, said before it begins.

Tokens are guessed by bytes of files until the service has stored some: a page of a PDF may hold a
line or two thousand words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from service.cli.documents.folder import SourceFile
from service.cli.output import duration, size

BYTES_PER_TOKEN = 4.0  # of text
# Of a file, the share of its bytes that are text; files that are compressed hold more than that.
_TEXT_SHARE = {
    **{".html": 0.4, ".htm": 0.4, ".eml": 0.3, ".xlsx": 2.0, ".docx": 0.5, ".pptx": 0.05},
    **{".epub": 1.5, ".pdf": 0.1},
}
SMALLER_CODEC = {"raw": "int8"}


@dataclass(frozen=True)
class Forecast:
    """What an ingest will take."""

    documents: int
    file_bytes: int
    tokens: int
    kv_bytes: int
    seconds: float | None
    tiers: dict[str, int]
    codec: str

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def lines(self) -> list[str]:
        """Return it in sentences."""
        what = f"{self.documents} documents, {size(self.file_bytes)}: about {self.tokens:,} tokens"
        out = [f"{what}, {size(self.kv_bytes)} of KV ({self.codec})"]
        if self.seconds is None:
            out.append("how long it takes is known when the first of them are stored")
        else:
            out.append(f"it takes {duration(self.seconds)} at the rate of the last documents")
        held = [
            f"{tier} has room for {'all' if free >= self.kv_bytes else _share(free, self.kv_bytes)}"
            for tier, free in self.tiers.items()
        ]
        if held:
            out.append(f"of this KV {', '.join(held)}")
        smaller = SMALLER_CODEC.get(self.codec)
        if smaller and any(free < self.kv_bytes for free in self.tiers.values()):
            out.append(
                f"a service that is started with --codec {smaller} stores about half as many bytes"
            )
        return out


def _share(part: float, whole: float) -> str:
    return f"{100 * max(0.0, part) / whole:.0f} %"


def forecast(
    sources: Sequence[SourceFile], documents: int, status: Mapping[str, Any]
) -> Forecast | None:
    """Say what files will take; None if the service is not ready, or of another version."""
    ingest, model = status.get("ingest"), status.get("model")
    if not ingest or not model:
        return None
    file_bytes, text_bytes = 0, 0.0
    for source in sources:
        try:
            length = source.path.stat().st_size
        except OSError:
            continue
        file_bytes += length
        text_bytes += length * _TEXT_SHARE.get(source.path.suffix.lower(), 1.0)
    tokens = round(text_bytes / BYTES_PER_TOKEN)
    rate = ingest["tokens_per_s"]
    tiers = {
        tier: round(values["capacity_bytes"] - values.get("used_bytes", 0.0))
        for tier, values in status.get("tiers", {}).items()
        if values.get("capacity_bytes")
    }
    return Forecast(
        documents=documents,
        file_bytes=file_bytes,
        tokens=tokens,
        kv_bytes=round(tokens * ingest["kv_bytes_per_token"]),
        seconds=tokens / rate if rate else None,
        tiers=tiers,
        codec=model["codec"],
    )
