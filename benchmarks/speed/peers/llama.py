"""llama.cpp in its own process: a model of the same shape, random bf16 weights, greedy decoding.

It needs llama-cpp-python and gguf (the extra `peers`), in this environment or in that of the Python
interpreter that KVSTITCH_LLAMA_PYTHON names. The process runs one command at a time, so that it
takes turns with the others.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Self

from benchmarks.common.shapes import sizes
from benchmarks.speed.setup import Setup

PYTHON = "KVSTITCH_LLAMA_PYTHON"
SCRIPT = Path(__file__).with_name("llama_process.py")


class Absent(Exception):
    """llama.cpp cannot be measured here; the message says why."""


class LlamaCpp:
    """The process, as a context manager.

    Raises:
        Absent: on entering, if llama.cpp cannot be measured.
    """

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._process: subprocess.Popen[str] | None = None
        self._folder = tempfile.TemporaryDirectory(prefix="kvstitch-gguf-")

    def __enter__(self) -> Self:
        shape = self._setup.shape
        order = sizes(shape.model) | {
            "threads": self._setup.threads,
            "context": shape.tokens,
            "room": shape.answer + 8,
            "folder": self._folder.name,
        }
        python = os.environ.get(PYTHON)
        if python is None:
            if not find_spec("llama_cpp") or not find_spec("gguf"):
                self.__exit__()
                raise Absent(f"llama-cpp-python and gguf are not installed, and {PYTHON} is unset")
            python = sys.executable
        self._process = subprocess.Popen(
            [python, str(SCRIPT), json.dumps(order)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            self._say(None)
        except RuntimeError as error:
            self.__exit__()
            raise Absent(str(error)) from error
        return self

    def __exit__(self, *error: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None
        self._folder.cleanup()

    def rewind(self) -> None:
        """Drops what was decoded, so that the context is as long as before."""
        self._say("rewind")

    def decode(self, steps: int) -> None:
        self._say(f"decode {steps}")

    def _say(self, command: str | None) -> None:
        """Sends a command, if any, and waits until it is done."""
        process = self._process
        assert process is not None
        sent, heard = _pipes(process)
        if command is not None:
            sent.write(command + "\n")
            sent.flush()
        reply = heard.readline()
        if reply.strip() != "ok":
            process.kill()
            told = process.communicate()[1].strip().splitlines()
            raise RuntimeError(f"llama.cpp's process ended: {told[-1] if told else reply!r}")


def _pipes(process: subprocess.Popen[str]) -> tuple[IO[str], IO[str]]:
    assert process.stdin is not None and process.stdout is not None
    return process.stdin, process.stdout
