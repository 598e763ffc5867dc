"""Subtitles (WebVTT, SubRip): what is said, in paragraphs that know their time."""

from __future__ import annotations

import re

from kvstitch.service.gateway.documents.parsing.charsets import decode
from kvstitch.service.gateway.documents.parsing.parsed_file import Bounds, ParsedFile, TextBuilder

PAUSE_S = 4.0  # after which a new paragraph begins
PARAGRAPH_CHARS = 600  # after which one ends with its sentence
_TIMES = re.compile(
    r"(?:(\d+):)?(\d\d):(\d\d)[.,](\d{1,3})\s+-->\s+(?:(\d+):)?(\d\d):(\d\d)[.,](\d{1,3})"
)
_SPEAKER = re.compile(r"<v(?:\.[^\s>]*)?\s+([^>]+)>")
_TAG = re.compile(r"</?[^>]+>|\{\\[^}]*\}")
_ENTITIES = {"&amp;": "&", "&lt;": "<", "&gt;": ">", "&nbsp;": " ", "&lrm;": "", "&rlm;": ""}


def parse(content: bytes, bounds: Bounds) -> ParsedFile:
    """Parse cues; of lines that are shown again while others follow each is kept once."""
    decoded = decode(content)
    out = TextBuilder(bounds)
    end = 0.0
    said: list[str] = []
    before: list[str] = []
    speaker = ""
    for cue in re.split(r"\n(?:[ \t]*\n)+", re.sub(r"\r\n?", "\n", decoded.text)):
        lines = cue.strip().splitlines()
        at = next((n for n, line in enumerate(lines) if _TIMES.search(line)), None)
        if at is None or not (found := _TIMES.search(lines[at])):
            continue  # the head, a note, a style
        start, until = _seconds(*found.groups()[:4]), _seconds(*found.groups()[4:])
        names = _SPEAKER.findall(cue)
        text = [one for line in lines[at + 1 :] if (one := _plain(line))]
        new = text[_shown(before, text) :]
        before = text
        full = sum(map(len, said)) > PARAGRAPH_CHARS and said[-1].endswith((".", "!", "?", "…"))
        if said and (start - end > PAUSE_S or full or (names and names[0] != speaker)):
            out.block(" ".join(said))
            said = []
        if new and not said:
            out.gap()
            out.mark(
                "page", f"{int(start) // 3600}:{int(start) // 60 % 60:02}:{int(start) % 60:02}"
            )
            if names and names[0] != speaker:
                new[0] = f"{names[0]}: {new[0]}"
        speaker = names[0] if names else speaker
        said += new
        end = until
    out.block(" ".join(said))
    return ParsedFile(**{**vars(out.finish()), "warnings": decoded.warnings})


def _shown(before: list[str], now: list[str]) -> int:
    """Return how many first lines were the last ones of the cue before."""
    most = min(len(before), len(now))
    return next((n for n in range(most, 0, -1) if before[-n:] == now[:n]), 0)


def _plain(line: str) -> str:
    text = _TAG.sub("", line)
    for entity, char in _ENTITIES.items():
        text = text.replace(entity, char)
    return " ".join(text.split())


def _seconds(hours: str | None, minutes: str, seconds: str, parts: str) -> float:
    return int(hours or 0) * 3600 + int(minutes) * 60 + int(seconds) + float(f"0.{parts}")
