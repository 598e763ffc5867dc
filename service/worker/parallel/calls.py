"""What rank 0 sends to the other ranks: functions with their arguments, pickled, over pipes.

All ranks run the same functions on their own heads. Arguments that each rank has for itself (its
decoder, KV caches, stored segments) are pickled by name, and every rank puts its own in their place
(`OtherRank.own`). Everything else is sent as it is.

Work that fails on all ranks alike (a method with a fault) fails one sequence, as in a worker of one
process. Work that fails on some ranks only leaves them out of step, so all of them end.
"""

from __future__ import annotations

import inspect
import io
import pickle
from collections.abc import Callable, Generator, Sequence
from itertools import count
from typing import Any, TypeVar

from service.worker.forward.chunk_prefill import ScratchKV
from service.worker.forward.decode import Fed
from service.worker.kv.pool import KVPool, SequenceKV
from service.worker.methods.layer_view import CachedSegment
from service.worker.model.decoder import DecoderModel
from service.worker.parallel.exchange import Exchange
from service.worker.parallel.other_rank import OtherRank
from service.worker.parallel.stored_segments import SharedArrival, SharedSegment
from service.worker.steps import Steps

T = TypeVar("T")
_NUMBERS = count()


class Calls:
    """Runs work on all ranks; implements `Lead`."""

    def __init__(
        self,
        exchange: Exchange,
        send: Callable[..., None],
        answers: Callable[[], list[Any]],
        give_up: Callable[[str], None],
    ) -> None:
        self._exchange = exchange
        self._send = send
        self._answers = answers
        self._give_up = give_up

    def run(self, work: Callable[..., T], arguments: dict[str, Any]) -> T:
        own_work: Callable[..., Any] = inspect.unwrap(work)
        own, sent = self._arguments(arguments)
        if inspect.isgeneratorfunction(own_work):
            steps: Any = self._steps(work, sent, own_work(**own))
            return steps  # type: ignore[no-any-return]
        self._send(OtherRank.call, work, sent)
        try:
            return own_work(**own)  # type: ignore[no-any-return]
        except Exception:
            self._check()
            raise

    def repeat(self, change: Callable[..., Any], *arguments: Any) -> int:
        number = next(_NUMBERS)
        self._send(OtherRank.repeat, change, arguments, number)
        return number

    def _steps(
        self, work: Callable[..., Any], sent: dict[str, Any], own: Generator[Any, None, T]
    ) -> Steps[T]:
        """Run work in steps: every rank takes a step when this rank does."""
        run, send = next(_NUMBERS), self._send
        send(OtherRank.begin, run, work, sent)
        try:
            while True:
                send(OtherRank.advance, run)
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
            send(OtherRank.close, run)

    def _check(self) -> None:
        """End all ranks unless what failed here has failed on all of them at the same point."""
        self._send(OtherRank.check)
        if any(answer != (True, self._exchange.made) for answer in self._answers()):
            self._give_up("a piece of work failed on some ranks and not on others")

    def _arguments(self, arguments: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the arguments of this rank's part, and those that the others are sent."""
        own, decoder = dict(arguments), arguments["decoder"]
        if "cached" in own:
            lengths = [segment.tokens for segment in own["layout"].segments]
            own["cached"] = self._segments(own["cached"], lengths, decoder)
        if "parts" in own:
            lengths = [len(part.ids) for part in own["addresses"][0].parts]
            own["parts"] = self._segments(own["parts"], lengths, decoder)
        if own.get("arrival") is not None:
            own["arrival"] = SharedArrival(self._exchange, own["arrival"])
        if "sequences" in own:
            own["sequences"] = [Fed.of(sequence) for sequence in own["sequences"]]
        sent = {**own, "decoder": _Named("decoder", decoder.lora)}
        if "layout" in own:
            sent["layout"] = own["layout"].to("cpu")
        if (progress := own.get("progress")) is not None:
            sent["progress"] = _Named("progress", own["kv"].number, progress.x is None)
        if "observed" in own:
            sent["observed"] = _Named("observed", own["kv"].number)
        return {**own, "decoder": decoder.alone()}, sent

    def _segments(
        self, stored: Sequence[CachedSegment | None], lengths: Sequence[int], decoder: DecoderModel
    ) -> list[SharedSegment | None]:
        return [
            None if one is None else SharedSegment(self._exchange, decoder, tokens, one)
            for one, tokens in zip(stored, lengths, strict=True)
        ]


class _Named:
    """Stands for an argument that the others have under this name (`OtherRank.own`)."""

    def __init__(self, *name: Any) -> None:
        self.name = name


_NAMES: dict[type, Callable[[Any], tuple[Any, ...]]] = {
    _Named: lambda named: named.name,
    KVPool: lambda pool: ("pool",),
    SequenceKV: lambda kv: ("kv", kv.number),
    ScratchKV: lambda kv: ("scratch", kv.tokens),
    SharedArrival: lambda arrival: ("arrival",),
    SharedSegment: lambda segment: ("segment", segment.tokens),
}
"""How the other ranks name what they have for themselves, by its type on rank 0."""


class _Pickler(pickle.Pickler):
    def persistent_id(self, obj: Any) -> tuple[Any, ...] | None:
        name = _NAMES.get(type(obj))
        return None if name is None else name(obj)


def pickled(message: object) -> bytes:
    """Return the bytes of a message, with names in the place of what each rank has for itself."""
    out = io.BytesIO()
    _Pickler(out, protocol=pickle.HIGHEST_PROTOCOL).dump(message)
    return out.getvalue()
