"""Logs on stderr, as text or as JSON: one object a line.

    {"time": "2026-11-25T10:00:00.000+00:00", "level": "INFO", "logger": "kvstitch", "message": "…"}

`exception` is a traceback, where there is one. Nothing is written to files and nothing rotates:
that is for whoever reads stderr (journald, a container engine).
"""

import json
import logging
import os
import sys
from datetime import UTC, datetime
from types import TracebackType
from typing import Final, Literal

LogFormat = Literal["text", "json"]
TEXT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class JsonFormatter(logging.Formatter):
    """One JSON object a line, in ASCII, so that a line is a line whatever is in it."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


def set_up(kind: str) -> None:
    """Send this process's logs to stderr, as `text` or as `json`, then with warnings and what ends
    the process. Call it before transformers is imported."""
    handler = logging.StreamHandler(sys.stderr)
    if kind == "json":
        handler.setFormatter(JsonFormatter())
        logging.captureWarnings(True)
        sys.excepthook = _log_exception
    else:
        handler.setFormatter(logging.Formatter(TEXT))
    if kind == "json" or not sys.stderr.isatty():
        # Bars of transformers and the hub are no lines; they are asked when they are imported.
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    logging.basicConfig(level=logging.INFO, handlers=[handler])


def kind() -> LogFormat:
    """Return what this process's logs are, for a process that it starts."""
    handlers = logging.getLogger().handlers
    return "json" if any(isinstance(h.formatter, JsonFormatter) for h in handlers) else "text"


def message_of(line: str) -> str:
    """Return the message of a line of JSON logs; any other line as it is."""
    try:
        return str(json.loads(line)["message"])
    except (ValueError, KeyError, TypeError):
        return line


def _log_exception(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    if issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)
    else:
        logging.getLogger("kvstitch").critical("ended by", exc_info=(kind, error, trace))
