"""Logs as JSON: a line is an object, whatever is in it, also of what ends a process."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from kvstitch.service.shared.logs import message_of

PROGRAM = """
import logging, sys, warnings
from kvstitch.service.shared import logs
logs.set_up(sys.argv[1])
log = logging.getLogger("x")
log.info("two\\nlines, %s", "\\u00e4 \\u2028")
warnings.warn("be warned")
try:
    1 / 0
except ZeroDivisionError:
    log.exception("failed")
print(logs.kind())
raise KeyError("the end")
"""


def run(kind: str) -> tuple[str, str]:
    done = subprocess.run([sys.executable, "-c", PROGRAM, kind], capture_output=True, text=True)
    assert done.returncode == 1
    return done.stdout.strip(), done.stderr


def test_json() -> None:
    kind, stderr = run("json")
    lines = [json.loads(line) for line in stderr.splitlines()]
    assert kind == "json" and stderr.isascii()
    said, warned, failed, ended = lines
    assert said["message"] == "two\nlines, ä \u2028" and said["logger"] == "x"
    assert said["level"] == "INFO" and said["time"].endswith("+00:00")
    assert "be warned" in warned["message"] and warned["level"] == "WARNING"
    assert "ZeroDivisionError" in failed["exception"] and failed["message"] == "failed"
    assert "KeyError: 'the end'" in ended["exception"] and ended["level"] == "CRITICAL"


def test_text() -> None:
    kind, stderr = run("text")
    assert kind == "text" and "INFO x: two\nlines, ä" in stderr and "UserWarning" in stderr


@pytest.mark.parametrize(
    ("line", "message"),
    [('{"message": "no model"}', "no model"), ("no model", "no model"), ("{}", "{}"), ("3", "3")],
)
def test_the_message_of_a_line(line: str, message: str) -> None:
    assert message_of(line) == message
