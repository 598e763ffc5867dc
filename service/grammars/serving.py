"""What the process of one grammar does: compiles it, and says what may come next."""

from __future__ import annotations

import time
from multiprocessing.connection import Connection

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from service.grammars.limits import (
    BURST_CPU_S,
    COMPILE_CPU_S,
    CPU_S_PER_TOKEN,
    SLOW_S,
    STEP_CPU_S,
    TOO_MUCH,
    allow_cpu,
    come_last,
    coming_last_if_slow,
    confine,
)
from service.grammars.step import Step, token_ids

# The library's own limits guard against what the process is limited in anyway, but also refuse
# objects with many optional properties.
_LIMITS = LLParserLimits(
    max_items_in_row=20_000,
    step_max_items=500_000,
    initial_lexer_fuel=10_000_000,
    step_lexer_fuel=2_000_000,
    verbose_errors=False,
)


def serve(connection: Connection, tokenizer: LLTokenizer) -> None:
    """Compile the grammar that comes first, then follow the tokens that come, to the end.

    Every message is answered by a `Step`, but for tokens that came meanwhile.
    """
    confine()
    try:
        allow_cpu(COMPILE_CPU_S)
        with coming_last_if_slow():
            grammar = connection.recv_bytes().decode()
            follower = Follower(LLMatcher(tokenizer, grammar, log_level=0, limits=_LIMITS))
            step = follower.step()
        connection.send_bytes(step.encode())
        while True:
            connection.send_bytes(follower.follow(token_ids(connection.recv_bytes())).encode())
    except (EOFError, OSError):
        return  # nobody asks any more
    except MemoryError:
        connection.send_bytes(Step(0, error=TOO_MUCH).encode())


class Follower:
    """Follows one answer through its grammar."""

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher
        self._position = 0

    def follow(self, tokens: list[int]) -> Step:
        """Note the answer's next tokens."""
        allow_cpu(STEP_CPU_S)
        started = time.process_time()
        self._position += len(tokens)
        self._matcher.consume_tokens(tokens)
        step = self.step()
        now = time.process_time()
        if now - started > SLOW_S:
            come_last()
        if now > BURST_CPU_S + CPU_S_PER_TOKEN * self._position:
            return Step(self._position, error=TOO_MUCH)
        return step

    def step(self) -> Step:
        matcher, position = self._matcher, self._position
        complete = not matcher.is_error() and matcher.is_stopped()
        forced = [] if complete else matcher.compute_ff_tokens()
        allowed = b"" if complete or forced else matcher.compute_bitmask()
        if matcher.is_error():
            return Step(position, error=matcher.get_error().strip() or "it allows no answer")
        return Step(position, complete, forced, allowed)
