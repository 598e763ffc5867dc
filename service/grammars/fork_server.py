"""Forks a process for every grammar, from one that has the tokenizer loaded.

    python -m kvstitch.service.grammars.fork_server SOCKET TOKENIZER VOCABULARY END_IDS

It is sent sockets; each is the connection of a new process, which has limits and does what the
first message asks for:

f, a form      write it as a grammar and compile that; the reply says both or why not
q, a form      the same, quickly or not at all
g, a grammar   compile it, then say after each token what may come next
c, an answer   check JSON against its schema

Whatever a grammar does to its process, the others and those who asked for them go on. The fork
server ends when its own socket is closed, the others when their clients go.
"""

import copy
import gc
import json
import os
import signal
import socket
import sys
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from kvstitch.service.grammars.forms import Form, is_json, short, written
from kvstitch.service.grammars.limits import (
    BURST_CPU_S,
    COMPILE_CPU_S,
    CPU_S_PER_TOKEN,
    QUICK_CPU_S,
    STEP_CPU_S,
    TOO_MUCH,
    Watch,
    allow_cpu,
    behind_others,
    confine,
    last_of_all,
)
from kvstitch.service.grammars.processes import Step, token_ids
from kvstitch.service.grammars.unique_names import UniqueNames, Vocabulary, without

# The library's own limits guard against what the process is limited in anyway, but also refuse
# objects with many optional properties.
_LIMITS = LLParserLimits(
    max_items_in_row=20_000,
    step_max_items=500_000,
    initial_lexer_fuel=10_000_000,
    step_lexer_fuel=2_000_000,
    verbose_errors=False,
)


@dataclass(frozen=True)
class Tokens:
    """What all processes share."""

    tokenizer: LLTokenizer
    vocabulary: Vocabulary


def serve(connection: Connection, tokens: Tokens) -> None:
    """Do what the first message asks for; follow its answer, if it is one's grammar, to the end."""
    confine()
    try:
        message = connection.recv_bytes()
        allow_cpu(QUICK_CPU_S if message[:1] == b"q" else COMPILE_CPU_S)
        kind, content = message[:1], message[1:].decode()
        if kind == b"g":
            _follow(connection, content, tokens)
            return
        asked = json.loads(content)
        with Watch(behind_others).over():
            made = _check(asked) if kind == b"c" else _write_form(asked, tokens)
        connection.send_bytes(json.dumps(made).encode())
    except (EOFError, OSError):
        return  # nobody asks any more


def _follow(connection: Connection, grammar: str, tokens: Tokens) -> None:
    watch = Watch(last_of_all)

    def compiled() -> tuple[Follower, Step]:
        follower = Follower(tokens, grammar)
        return follower, follower.step()

    follower, step = watch.aside(compiled)
    while True:
        connection.send_bytes(step.encode())
        new = token_ids(connection.recv_bytes())
        with watch.over():
            step = follower.follow(new)


def _write_form(asked: dict[str, Any], tokens: Tokens) -> dict[str, Any]:
    try:
        form = written(Form(**asked), tokens.tokenizer)
    except ValueError as error:
        return {"error": str(error)}
    step = Follower(tokens, form.grammar).step()
    if step.error:
        return {"error": step.error}
    return {"grammar": form.grammar, "unheld": form.unheld}


def _check(asked: dict[str, Any]) -> dict[str, Any]:
    """Say why an answer does not match a schema; null: it does."""
    import jsonschema_rs

    try:
        answer = json.loads(asked["text"])
        jsonschema_rs.validate(asked["schema"], answer, offline=True)
    except jsonschema_rs.ValidationError as error:
        where = "/".join(map(str, error.instance_path))
        return {"fault": f"{short(error.message)} (at /{where})"}
    except Exception as error:
        return {"fault": f"it could not be checked: {short(str(error))}"}
    return {"fault": None}


class Follower:
    """Follows one answer through its grammar."""

    def __init__(self, tokens: Tokens, grammar: str) -> None:
        self._tokenizer = tokens.tokenizer
        self._matcher = LLMatcher(tokens.tokenizer, grammar, log_level=0, limits=_LIMITS)
        self._names = UniqueNames(tokens.vocabulary) if is_json(grammar) else None
        self._position = 0

    def follow(self, tokens: list[int]) -> Step:
        """Note the answer's next tokens."""
        allow_cpu(STEP_CPU_S)
        self._position += len(tokens)
        self._matcher.consume_tokens(tokens)
        if self._names is not None:
            self._names.follow(tokens)
        step = self.step()
        if time.process_time() > BURST_CPU_S + CPU_S_PER_TOKEN * self._position:
            return Step(self._position, error=TOO_MUCH)
        return step

    def step(self) -> Step:
        """Return what may come next."""
        matcher, position = self._matcher, self._position
        complete = not matcher.is_error() and matcher.is_stopped()
        forced = [] if complete else self._forced_tokens()
        allowed = b"" if complete or forced else matcher.compute_bitmask()
        if self._names is not None and not matcher.is_error():
            if allowed:
                allowed = self._with_new_names(self._names, allowed)
            if self._names.doubles(forced) or (allowed and not any(allowed)):
                return Step(position, error="every name that may come is in the object already")
        if matcher.is_error():
            return Step(position, error=short(matcher.get_error()) or "it allows no answer")
        return Step(position, complete, forced, allowed)

    def _with_new_names(self, names: UniqueNames, allowed: bytes) -> bytes:
        """Return bits of allowed tokens without those that must lead to a name that was written."""
        matcher, ends = self._matcher, []
        allowed = names.without_doubles(allowed)
        for token in names.completing():
            if not allowed[token >> 3] >> (token & 7) & 1 or not matcher.consume_token(token):
                continue
            after = copy.deepcopy(names)
            after.follow([token])
            forced = self._forced_tokens()
            if after.doubles(forced) or not (
                forced or any(after.without_doubles(matcher.compute_bitmask()))
            ):
                ends.append(token)
            matcher.rollback(1)
        return without(allowed, ends)

    def _forced_tokens(self) -> list[int]:
        """Return the next tokens that there is no choice about."""
        tokens: list[int] = self._matcher.compute_ff_tokens()
        if tokens and self._matcher.validate_tokens(tokens) < len(tokens):
            text = self._matcher.compute_ff_bytes().decode(errors="ignore")
            tokens = self._tokenizer.greedy_tokenize(text)
        return tokens


def main() -> None:
    fd, file, vocabulary, end_ids = sys.argv[1:]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started this ends it
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the processes
    tokenizer = LLTokenizer(
        Path(file).read_text(encoding="utf-8"),
        n_vocab=int(vocabulary) or None,
        eos_token=json.loads(end_ids) or None,  # None: as tokenizer.json has it
    )
    tokens = Tokens(tokenizer, Vocabulary(tokenizer))
    gc.freeze()  # so that no process has to copy what all of them share
    with socket.socket(fileno=int(fd)) as requests:
        while True:
            message, fds, _, _ = socket.recv_fds(requests, 1, 1)
            if not message:
                return
            if os.fork() == 0:
                requests.close()
                _become(fds[0], tokens)
            os.close(fds[0])


def _become(fd: int, tokens: Tokens) -> NoReturn:
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # what the library prints when it panics
        serve(Connection(fd), tokens)
    finally:
        os._exit(0)


if __name__ == "__main__":
    main()
