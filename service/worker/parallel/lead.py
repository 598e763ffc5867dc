"""Rank 0's side of work that all ranks do: says what is begun and continued, and does its own part.

A piece of work that fails on all ranks alike (a method with a fault) fails one sequence, as in a
worker of one process. One that fails on some ranks only leaves them out of step, so the gang ends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, TypeVar

from service.worker.forward.chunk_prefill import ScratchKV
from service.worker.forward.decode import Decodable
from service.worker.forward.prefill import Progress
from service.worker.layout import PromptLayout
from service.worker.methods.layer_view import CachedSegment
from service.worker.model.decoder import DecoderModel
from service.worker.parallel.commands import (
    Arrived,
    Begin,
    Cache,
    Call,
    Check,
    Close,
    Fed,
    Lost,
    Next,
    Observed,
    Resumed,
    Scratch,
    Stored,
    Waits,
)
from service.worker.parallel.exchange import Exchange
from service.worker.parallel.followers import Followers
from service.worker.parallel.segments import SharedSegment
from service.worker.parallel.shared_pool import SharedKV
from service.worker.steps import Steps

T = TypeVar("T")
_RUNS = count()


class GangLead:
    """Implements `Lead`."""

    def __init__(self, followers: Followers, exchange: Exchange) -> None:
        self._followers = followers
        self._exchange = exchange

    def steps(self, work: Callable[..., Steps[T]], **arguments: Any) -> Steps[T]:
        run, send = next(_RUNS), self._followers.send
        send(Begin(run, work, self._told(arguments)))
        own = work(**self._shared(arguments))
        try:
            while True:
                send(Next(run))
                try:
                    awaited = next(own)
                except StopIteration as end:
                    result: T = end.value
                    return result
                except Exception:
                    self._check()
                    raise
                yield awaited
        finally:
            own.close()
            send(Close(run))

    def call(self, work: Callable[..., T], **arguments: Any) -> T:
        self._followers.send(Call(work, self._told(arguments)))
        try:
            return work(**self._shared(arguments))
        except Exception:
            self._check()
            raise

    def _check(self) -> None:
        """Ends the gang unless what failed here has failed on all ranks at the same point."""
        answers = self._followers.ask(Check())
        if any(not a.failed or a.exchanges != self._exchange.made for a in answers):
            self._followers.give_up("a piece of work failed on some ranks and not on others")

    # -- arguments --------------------------------------------------------------------------------

    def _told(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """What the others are told of the arguments."""
        told: dict[str, Any] = {}
        for name, value in arguments.items():
            match name, value:
                case "decoder", _:
                    pass
                case "kv", SharedKV(number=number):
                    told[name] = Cache(number)
                case "kv", ScratchKV():
                    told[name] = Scratch(arguments["layout"].tokens)
                case "layout", PromptLayout():
                    told[name] = value.to("cpu")
                case (("cached" | "parts"), _):
                    lengths = _lengths(arguments)
                    told[name] = [
                        None if stored is None else Stored(tokens)
                        for stored, tokens in zip(value, lengths, strict=True)
                    ]
                case "progress", Progress():
                    told[name] = Resumed(arguments["kv"].number, anew=value.x is None)
                case "arrival", _:
                    told[name] = value is not None
                case "observed", _:
                    told[name] = Observed(arguments["kv"].number)
                case "sequences", _:
                    told[name] = [_fed(sequence) for sequence in value]
                case _:
                    told[name] = value
        return told

    def _shared(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """The arguments with which this rank does its part."""
        shared = dict(arguments)
        for name in ("cached", "parts"):
            if name in shared:
                shared[name] = self._segments(shared[name], shared["decoder"])
        if (arrival := shared.get("arrival")) is not None:
            shared["arrival"] = lambda layer: self._announced(arrival(layer))
        return shared

    def _segments(
        self, stored: Sequence[CachedSegment | None], decoder: DecoderModel
    ) -> list[SharedSegment | None]:
        return [
            None if one is None else SharedSegment(one, self._exchange, decoder.device)
            for one in stored
        ]

    def _announced(self, arrival: Steps[None]) -> Steps[None]:
        """Waits, and tells the others how it ends."""
        send = self._followers.send
        try:
            for awaited in arrival:
                send(Waits())
                yield awaited
        except Exception:
            send(Lost())
            raise
        send(Arrived())


def _lengths(arguments: dict[str, Any]) -> list[int]:
    """Tokens of the stored segments."""
    if "layout" in arguments:
        return [segment.tokens for segment in arguments["layout"].segments]
    return [len(part.ids) for part in arguments["addresses"][0].parts]


def _fed(sequence: Decodable) -> Fed:
    assert isinstance(sequence.kv, SharedKV)
    return Fed(sequence.tokens[-1:], sequence.position, Cache(sequence.kv.number))
