"""Asks the processes of grammars: opens one for each, and never waits for it longer than it may."""

import json
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Collection
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from kvstitch.service.grammars.forms import Form, WrittenForm
from kvstitch.service.grammars.limits import TOO_BUSY, TOO_MUCH, WALL_S

_HEAD = struct.Struct("<IBI")


@dataclass(frozen=True)
class Step:
    """What may come next."""

    position: int  # tokens of the answer so far
    complete: bool = False  # whether nothing may come but its end
    # Next tokens that there is no choice about; often none.
    forced: list[int] = field(default_factory=list)
    # Whether each token may come next, as bits from the lowest, in 32-bit words. Empty where
    # `forced` or `complete` says it all.
    allowed: bytes = b""
    error: str = ""  # why the grammar cannot be followed; empty: it can

    def encode(self) -> bytes:
        status = 2 if self.error else int(self.complete)
        head = _HEAD.pack(self.position, status, len(self.forced))
        return head + token_bytes(self.forced) + (self.allowed or self.error.encode())

    @staticmethod
    def decode(message: bytes) -> "Step":
        position, status, count = _HEAD.unpack_from(message)
        rest = _HEAD.size + 4 * count
        forced = token_ids(message[_HEAD.size : rest])
        if status == 2:
            return Step(position, forced=forced, error=message[rest:].decode())
        return Step(position, status == 1, forced, message[rest:])


def token_bytes(tokens: list[int]) -> bytes:
    return np.asarray(tokens, "<u4").tobytes()


def token_ids(message: bytes) -> list[int]:
    ids: list[int] = np.frombuffer(message, "<u4").tolist()
    return ids


class TakesTooMuch(ValueError):
    """A grammar took more time or memory than one may."""


class TooBusy(Exception):
    """The machine had no time for a grammar: that says nothing about the grammar."""


class GrammarProcesses:
    """The processes of one model's grammars; the first grammar starts them. For any thread.

    `vocabulary`, the length of the model's logits, and `end_ids`, which end an answer, are as
    tokenizer.json has them where they are not given.
    """

    def __init__(self, tokenizer: Path, vocabulary: int = 0, end_ids: Collection[int] = ()) -> None:
        self._arguments = (str(tokenizer), str(vocabulary), json.dumps(sorted(end_ids)))
        self._lock = threading.Lock()
        self._server: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def open(self) -> Connection:
        """Start a process, and return the connection to it; it ends when that is closed."""
        ours, theirs = socket.socketpair()
        try:
            with self._lock:
                self._hand_over(theirs)
            return Connection(ours.detach())
        finally:
            theirs.close()

    def write(self, form: Form, *, quickly: bool = False) -> WrittenForm:
        """Return a form's grammar, which can be compiled and begun. Blocks.

        Raises:
            TakesTooMuch: Its process was ended; `quickly`, that may be too soon.
            TooBusy: Its process has not replied.
            ValueError: It is not valid, or cannot be held; the message says which.
        """
        reply = self._ask(b"q" if quickly else b"f", asdict(form))
        if "error" in reply:
            raise ValueError(reply["error"])
        return WrittenForm(**reply)

    def fault(self, schema: dict[str, Any], text: str) -> str | None:
        """Return why a text is no JSON of a schema; None if it is. Blocks."""
        try:
            fault: str | None = self._ask(b"c", {"schema": schema, "text": text})["fault"]
        except (ValueError, TooBusy) as error:
            return f"it could not be checked: {error}"
        return fault

    def _ask(self, kind: bytes, what: dict[str, Any]) -> dict[str, Any]:
        with self.open() as connection:
            try:
                message = json.dumps(what).encode()
            except RecursionError:
                raise ValueError("it is nested too deeply") from None
            try:
                connection.send_bytes(kind + message)
                if not connection.poll(WALL_S):
                    raise TooBusy(TOO_BUSY)
                reply: dict[str, Any] = json.loads(connection.recv_bytes())
            except (EOFError, OSError):
                raise TakesTooMuch(TOO_MUCH) from None
        return reply

    def close(self) -> None:
        """End all of them; a later grammar starts them again."""
        with self._lock:
            if self._server is not None and self._process is not None:
                self._server.close()
                self._process.wait()
            self._server = None

    def _hand_over(self, end: socket.socket) -> None:
        if self._server is not None:
            try:
                socket.send_fds(self._server, [b"+"], [end.fileno()])
                return
            except OSError:  # the server is gone: killed from outside
                self._server.close()
        self._server, process = socket.socketpair()
        with process:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "kvstitch.service.grammars.fork_server"),
                    *(str(process.fileno()), *self._arguments),
                ],
                pass_fds=[process.fileno()],
                stdin=subprocess.DEVNULL,
                env={
                    **os.environ,
                    "OMP_NUM_THREADS": "1",
                    "RAYON_NUM_THREADS": "1",
                    # An arena for a thread would count against the memory that it may take.
                    "MALLOC_ARENA_MAX": "1",
                },
            )
        socket.send_fds(self._server, [b"+"], [end.fileno()])


class FollowedGrammar:
    """One answer's grammar, in llguidance's form, followed by its process."""

    def __init__(self, processes: GrammarProcesses, grammar: str) -> None:
        self._connection = processes.open()
        self._position = 0
        self._asked_at = time.monotonic()
        self._step = Step(-1)
        self._say(b"g" + grammar.encode())

    def follow(self, tokens: list[int]) -> None:
        """Note the answer's next tokens."""
        self._position += len(tokens)
        self._asked_at = time.monotonic()
        self._say(token_bytes(tokens))

    def step(self, patience_s: float = 0.0) -> Step | None:
        """Return what may come next; None if it is not known within so many seconds."""
        until = time.monotonic() + patience_s
        while self._step.position != self._position and not self._step.error:
            left = until - time.monotonic()
            try:
                if self._connection.poll(max(0.0, left)):
                    self._step = Step.decode(self._connection.recv_bytes())
                elif time.monotonic() > self._asked_at + WALL_S:
                    self._step = Step(self._position, error=TOO_BUSY)
                elif left <= 0:
                    return None
            except (EOFError, OSError):
                self._step = Step(self._position, error=TOO_MUCH)
        return self._step

    def close(self) -> None:
        """End its process."""
        self._connection.close()

    def _say(self, message: bytes) -> None:
        try:
            self._connection.send_bytes(message)
        except OSError:
            self._step = Step(self._position, error=TOO_MUCH)
