"""Turns token ids into text while they come in, and ends an answer at a stop string."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from service.gateway.tool_calls.call_parser import overlap

Decode = Callable[[Sequence[int]], str]

_PARTIAL = "\ufffd"  # what an incomplete character decodes to


class Detokenizer:
    """Emits text as soon as it is final: never half a character, never corrected afterwards.

    ids   … [context  | new ......]
             ^ start    ^ read
    Only ids[start:] are decoded. The context is the last piece that ended on a whole character.
    A tokenizer that strips or adds a blank at the beginning of a text then does so in the context
    and not in the new text.

    Args:
        decode: Token ids to text.
        skip: Ids that yield no text, e.g. those that end an answer.
        before: Ids of the text that goes on here; empty: a new text begins.
    """

    def __init__(
        self, decode: Decode, skip: Collection[int] = (), before: Sequence[int] = ()
    ) -> None:
        self._decode = decode
        self._skip = skip
        self._ids = list(before)
        self._start = 0
        self._read = len(before)
        self._sent = len(decode(before)) if before else 0  # of decode(ids[start:]), emitted

    def push(self, token: int) -> str:
        """Return the text that is final now that `token` is known; may be empty."""
        if token in self._skip:
            return ""
        self._ids.append(token)
        text = self._decode(self._ids[self._start :])
        whole = text.rstrip(_PARTIAL)
        new = whole[self._sent :]
        self._sent = max(self._sent, len(whole))
        if whole == text:
            self._start, self._read = self._read, len(self._ids)
            self._sent = len(self._decode(self._ids[self._start :]))
        return new


class StopStrings:
    """Passes text on until a stop string appears; drops the stop string and everything after it."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [stop for stop in stops if stop]
        self._held = ""
        self.stopped = False
        self.passed = 0

    def push(self, text: str, *, ending: bool = True) -> str:
        """Return the text that may be sent now; empty once `stopped`."""
        passed = self._push(text) if ending else text
        self.passed += len(passed)
        return passed

    def _push(self, text: str) -> str:
        if self.stopped:
            return ""
        text = self._held + text
        found = [at for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            self.stopped, self._held = True, ""
            return text[: min(found)]
        keep = max((overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        """Return the text held back, for an answer that ended without a stop string."""
        text, self._held = self._held, ""
        self.passed += len(text)
        return text


class AnswerText:
    """Collects an answer: detokenised, cut at stop strings, without leading blanks.

    An answer that the prompt has begun starts with these words: the client reads a whole sentence,
    and sends one back as an earlier turn. They come with the first token, so that the time to the
    first piece of text stays the time to the first token. Stop strings end only what the model
    writes.

    Spans count characters of what the model writes, before anything is dropped:

        blanks | answer ……… | held back or stop string
               └── sent ────┘

    Args:
        decode: Token ids to text.
        skip: Ids that yield no text, e.g. those that end an answer.
        stops: Strings that end an answer.
        prefix: The words with which the prompt has begun the answer.
        min_tokens: Tokens before which no stop string ends the answer.
        before: Last ids of a text that the answer continues, leading blanks and all; empty: of
            none.
        exact: Whether leading blanks are part of the answer, as where it has a form.

    Attributes:
        text: The answer so far.
        begun: The words with which the prompt has begun it.
        last_span: What the last token added; empty for a part of a character, which the token that
            completes it adds.
    """

    def __init__(
        self,
        decode: Decode,
        skip: Collection[int],
        stops: Sequence[str],
        *,
        prefix: str = "",
        min_tokens: int = 0,
        before: Sequence[int] = (),
        exact: bool = False,
    ) -> None:
        self._detokenizer = Detokenizer(decode, skip, before)
        self._exact = exact or bool(before)
        self._stops = StopStrings(stops)
        self.begun = self._prefix = prefix.lstrip()
        self._unending = min_tokens
        self._blanks = 0  # characters before the answer, which were dropped
        self.text = ""
        self.last_span = range(0)

    @property
    def stopped(self) -> bool:
        return self._stops.stopped

    def push(self, token: int) -> str:
        prefix, self._prefix = self._prefix, ""
        self.text += prefix
        new = self._detokenizer.push(token)
        self.last_span = range(self.last_span.stop, self.last_span.stop + len(new))
        self._unending -= 1
        return prefix + self._emit(self._stops.push(new, ending=self._unending < 0))

    def finish(self) -> str:
        return self._emit(self._stops.finish())

    @property
    def sent(self) -> range:
        """The span that was sent."""
        return range(self._blanks, self._stops.passed)

    def offset(self, start: int) -> int:
        """Return the place in `text` of the character at `start` of a span."""
        return len(self.begun) + max(0, start - self._blanks)

    def _emit(self, text: str) -> str:
        if not self.text and not self._exact:
            # Most vocabularies continue "Answer:" with " Paris".
            whole, text = text, text.lstrip()
            self._blanks += len(whole) - len(text)
        self.text += text
        return text
