"""Parses one file in a process of its own: the file on stdin, JSON on stdout.

    python -m kvstitch.service.gateway.documents.parsing.parser_process \\
        KIND PARSER CHARSET PICTURE_READER ARCHIVES MAX_PAGES MAX_CHARS OCR_PAGES \\
        CPU_S MOST_CPU_S MEMORY_BYTES MOST_MEMORY_BYTES

The kernel enforces the limits: a file that takes too much ends this process and nothing else.
What reads pictures, once it begins, may take more, up to the hard limits.
Prints the fields of ParsedFile, or {"error": what to do}.
"""

import json
import resource
import sys
from dataclasses import asdict, replace
from importlib import import_module
from typing import Any

from kvstitch.service.errors import InvalidRequest
from kvstitch.service.gateway.documents.parsing.parsed_file import Bounds, ParsedFile, ParseWarning
from kvstitch.service.shared.resources import behind_answers


def main() -> None:
    behind_answers()
    kind, parser, charset, picture_reader, archives, *limits = sys.argv[1:]
    pages, chars, ocr_pages, cpu_s, most_cpu_s, memory, most_memory = map(int, limits)
    resource.setrlimit(resource.RLIMIT_AS, (memory, most_memory))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, most_cpu_s + 1))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    if kind == "office":
        # openpyxl loads numpy where it finds it: slower than most files are.
        sys.modules["numpy"] = None  # type: ignore[assignment]
    answer: dict[str, Any]
    try:
        bounds = Bounds(pages, chars, ocr_pages, picture_reader, json.loads(archives))
        answer = _parse(parser, sys.stdin.buffer.read(), bounds, charset)
    except InvalidRequest as error:
        answer = {"error": error.message}
    except MemoryError:
        answer = {"error": "it needs more memory than is allowed: split it"}
    except RecursionError:
        answer = {"error": "its objects are nested too deeply: save it anew"}
    except Exception as error:
        answer = {"error": _damaged(kind, error)}
    sys.stdout.buffer.write(json.dumps(answer).encode())


def _damaged(kind: str, error: Exception) -> str:
    """Say that a file cannot be read; what a library says about it is added if it is a sentence."""
    said = str(error).strip()
    reason = f" ({said[:300]})" if len(said.split()) > 2 else ""
    return f"it is damaged, or not readable {kind}{reason}: open it and save it anew"


def _parse(parser: str, content: bytes, bounds: Bounds, charset: str = "") -> dict[str, Any]:
    # Only this format's libraries are loaded: each takes a part of a second.
    module, _, function = parser.partition(":")
    parse = getattr(import_module(module), function)
    warnings: tuple[ParseWarning, ...] = ()
    if charset:
        # Who sends a file knows more than its own label does, as for browsers.
        from kvstitch.service.gateway.documents.parsing.charsets import decode

        decoded = decode(content, charset)
        content, warnings = decoded.text.encode(), decoded.warnings
    parsed: ParsedFile = parse(content, bounds)
    return asdict(replace(parsed, warnings=(*warnings, *parsed.warnings)))


if __name__ == "__main__":
    main()
