"""Parses one file in a process of its own: the file on stdin, JSON on stdout.

    python -m service.gateway.corpus.parsing.parser_process \\
        KIND MAX_PAGES MAX_CHARS CPU_S MEMORY_BYTES

The kernel enforces the limits: a file that takes too much ends this process and nothing else.
Prints the fields of ParsedFile, or {"error": what to do}.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from dataclasses import asdict, replace
from typing import Any

from service.errors import InvalidRequest

PRIORITY = 10  # answers come first


def main() -> None:
    os.nice(PRIORITY)
    kind, *limits = sys.argv[1:]
    max_pages, max_chars, cpu_s, memory = map(int, limits)
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 1))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    answer: dict[str, Any]
    try:
        answer = _parse(kind, sys.stdin.buffer.read(), max_pages, max_chars)
    except InvalidRequest as error:
        answer = {"error": error.message}
    except MemoryError:
        answer = {"error": "it needs more memory than is allowed: split it"}
    except RecursionError:
        answer = {"error": "its objects are nested too deeply: save it anew"}
    except Exception as error:
        answer = {"error": f"it is not readable {kind} ({type(error).__name__}: {error})"[:500]}
    sys.stdout.buffer.write(json.dumps(answer).encode())


def _parse(kind: str, content: bytes, max_pages: int, max_chars: int) -> dict[str, Any]:
    if kind == "pdf":
        from service.gateway.corpus.parsing import pdf

        return asdict(pdf.parse(content, max_pages, max_chars))
    if kind == "md":
        from service.gateway.corpus.parsing import markdown

        # The caller has the text; only what was found in it goes back.
        return asdict(replace(markdown.parse(content.decode()), text=""))
    from service.gateway.corpus.parsing import html

    parsed = html.parse(content)
    if len(parsed.text) > max_chars:
        raise InvalidRequest(f"its text has more than {max_chars} characters: split it")
    return asdict(parsed)


if __name__ == "__main__":
    main()
