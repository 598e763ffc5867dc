"""Finds the calls in an answer while its text comes in.

    answer ──► text … | opens | call, call … | closes | text …
               Text            CallStarted, CallArguments …

What turns out to be no call is passed on as the text that it is: wrong JSON, an unknown name, an
answer that ends too soon. An answer that is calls and nothing else needs no marks: small models
forget them. In a stream a call is passed on as soon as its name is known and its
arguments have begun, and cannot be taken back then. A call that max_tokens has cut is a call with
what there is of its arguments, if it is clear of which tool; if not, a warning holds what there is.
"""

import re
import uuid
from dataclasses import dataclass, field, replace

from kvstitch.service.gateway.tool_calls.json_call import CallReader
from kvstitch.service.gateway.tool_calls.tools import ToolForm, ToolSet
from kvstitch.service.prompt import ToolCall


@dataclass(frozen=True)
class Text:
    """Text of the answer that is no call."""

    text: str


@dataclass(frozen=True)
class CallStarted:
    """A call; its arguments follow. `index` counts the answer's calls from 0."""

    index: int
    id: str
    name: str


@dataclass(frozen=True)
class CallArguments:
    """The next piece of a call's arguments, which are JSON text."""

    index: int
    text: str


Piece = Text | CallStarted | CallArguments


@dataclass
class ParsedAnswer:
    """A whole answer: its text without calls, and its calls."""

    text: str = ""
    calls: list[ToolCall] = field(default_factory=list)

    def add(self, piece: Piece) -> None:
        match piece:
            case Text(text):
                self.text += text
            case CallStarted(_, id, name):
                self.calls.append(ToolCall(id, name, ""))
            case CallArguments(index, text):
                call = self.calls[index]
                self.calls[index] = replace(call, arguments=call.arguments + text)


_BETWEEN = " \t\r\n,;[]"  # what may stand before, between and after calls
_FENCE = "```"
# An answer that is calls and nothing else, without the form's marks: small models forget them.
_UNMARKED = re.compile(r"\s*(?:```(?:json|tool_call)?\s*)?(?=\{)")
_PERHAPS_UNMARKED = re.compile(r"\s*(?:`{0,2}|```[a-z_]{0,9}\s*)")
_ARGS_MARK = "[ARGS]"
_NO_CALL = "what began like a tool call is none, and stays text"


class CallParser:
    """Parses one answer: `answer` is what was passed on so far, `early` of calls before they are
    complete; `warnings` are for the client."""

    def __init__(self, form: ToolForm, tools: ToolSet, *, early: bool) -> None:
        self._form = form
        self._tools = tools
        self._early = early
        self._held = ""  # not yet known to be text or the beginning of calls
        self._raw = ""  # of what may be a call: passed on as text if it is none
        self._name = ""  # a name that stands before its arguments
        self._reader: CallReader | None = None
        self._sent = -1  # characters of the arguments that were passed on; -1: not even the name
        self._inside = False  # between `opens` and `closes`
        self._unmarked = False  # in calls that no `opens` stands before
        self._begun = False  # whether the answer holds anything but blanks
        self.answer = ParsedAnswer()
        self.warnings: list[str] = []

    def push(self, text: str) -> list[Piece]:
        """Return what is known now that `text` has come."""
        out: list[Piece] = []
        self._held += text
        while self._held:
            before = len(self._held), self._inside, self._reader
            if self._reader is not None:
                self._read_call(out)
            elif self._inside:
                self._find_call(out)
            else:
                self._find_calls(out)
            if (len(self._held), self._inside, self._reader) == before:
                break  # more has to come
        return self._passed(out)

    def finish(self, *, cut: bool = False) -> list[Piece]:
        """Return what is left of an answer that has ended; `cut`: before its end."""
        out: list[Piece] = []
        reader = self._reader
        if cut and self._is_call(reader):
            self._end_cut_call(reader, out)
        elif reader is not None and self._sent >= 0:
            if not cut:
                self.warnings.append(_incomplete(reader.name))
        elif self._raw.strip(_BETWEEN) or (self._inside and not self.answer.calls):
            if self._raw.strip(_BETWEEN) and not cut and not self._unmarked:
                self.warnings.append(_NO_CALL)
            out.append(Text(self._raw + self._held))
        elif not self._inside and not (self.answer.calls and not self._held.strip()):
            out.append(Text(self._held))
        self._held = self._raw = ""
        self._reader = None
        return self._passed(out)

    # -- a call that was cut short ---------------------------------------------------------------

    def _is_call(self, reader: CallReader | None) -> bool:
        """Return whether the answer ends within what can be nothing but a call."""
        if reader is None:
            begun = self._inside and bool(self._raw.strip(_BETWEEN) or self._name)
        else:  # without a mark it may be any JSON
            marked = bool(self._form.opens) and not self._unmarked
            begun = marked or reader.name_so_far is not None
        if self._tools.forced and not self.answer.calls:
            begun = True
        return begun and bool(self._possible_tools(reader))

    def _end_cut_call(self, reader: CallReader | None, out: list[Piece]) -> None:
        meant = self._possible_tools(reader)
        if len(meant) > 1:
            what = f"{self._raw}{self._held}".strip()
            self.warnings.append(f"the answer was cut before it said which tool it calls: {what}")
        elif not self._surplus():
            reader = reader or CallReader(meant[0])
            reader.name = meant[0]
            self._pass_on(reader, out, reader.arguments_so_far)

    def _possible_tools(self, reader: CallReader | None) -> list[str]:
        """Return the tools whose names begin with what there is of the call's."""
        begun = self._name.partition("[")[0].strip() if reader is None else reader.name_so_far
        if begun in self._tools.names:
            return [begun]
        return [name for name in self._tools.names if name.startswith(begun or "")]

    # -- outside of calls ------------------------------------------------------------------------

    def _find_calls(self, out: list[Piece]) -> None:
        opens = self._form.opens
        if not opens:
            self._begin_or_text(out)
            return
        if not self._begun:
            if (begins := _UNMARKED.match(self._held)) is not None:
                self._raw, self._held = begins[0], self._held[begins.end() :]
                self._inside = self._unmarked = self._begun = True
                return
            if _PERHAPS_UNMARKED.fullmatch(self._held):
                return
            self._begun = True
        at = self._held.find(opens)
        if at >= 0:
            before = self._held[:at].rstrip()  # blanks before calls belong to the form
            out.append(Text(before))
            self._raw = self._held[len(before) : at + len(opens)]
            self._held = self._held[at + len(opens) :]
            self._inside, self._unmarked = True, False
            return
        keep = overlap(self._held, opens)
        text = self._held[: len(self._held) - keep].rstrip()
        out.append(Text(text))
        self._held = self._held[len(text) :]

    def _begin_or_text(self, out: list[Piece]) -> None:
        """Find calls of a form without a mark: the whole answer is calls, or none of it."""
        stripped = self._held.lstrip()
        if not stripped:
            return
        if not self._begun and stripped[0] in "{[":
            self._raw, self._held = self._held[: -len(stripped)], stripped
            self._inside = True
        else:  # blanks wait: after calls they are no text if nothing follows
            text = self._held.rstrip()
            out.append(Text(text))
            self._held = self._held[len(text) :]
        self._begun = True

    # -- between calls ---------------------------------------------------------------------------

    def _find_call(self, out: list[Piece]) -> None:
        form, held = self._form, self._held
        if self._unmarked and held[0] == "`":
            if held.startswith(_FENCE):
                self._raw, self._held, self._inside = "", held[len(_FENCE) :], False
            elif not _FENCE.startswith(held):
                self._no_call(out)
            return
        if not self._name:
            blank = len(held) - len(held.lstrip(_BETWEEN))
            if form.bare_names:  # newer forms of Mistral repeat the mark
                rest = held.lstrip(_BETWEEN.replace("[", ""))
                if rest.startswith(form.opens):
                    self._take(len(held) - len(rest) + len(form.opens))
                    return
                if rest and form.opens.startswith(rest):
                    return
            if blank:
                self._take(blank)
                return
            if form.closes and form.closes.startswith(held[: len(form.closes)]):
                if held.startswith(form.closes):
                    self._inside = False
                    if self._raw.strip(_BETWEEN):
                        out.append(Text(self._raw + form.closes))
                        self.warnings.append("an empty tool call stays text")
                    self._raw, self._held = "", held[len(form.closes) :]
                return
            if form.closes and held.startswith(form.opens):  # the mark, repeated without its end
                self._take(len(form.opens))
                return
            if form.closes and form.opens.startswith(held):
                return
        if held[0] == "{":
            name = self._name.removesuffix(_ARGS_MARK).strip() or None
            self._reader, self._sent, self._name = CallReader(name), -1, ""
            return
        if form.bare_names and (held[0].isalnum() or held[0] in "_.-[]"):
            self._name += held[0]
            self._take(1)
            return
        self._no_call(out)

    def _take(self, length: int) -> None:
        """Move so much of the held text to what may be a call."""
        self._raw, self._held = self._raw + self._held[:length], self._held[length:]

    def _no_call(self, out: list[Piece], why: str = _NO_CALL) -> None:
        """Pass on as text what stands where a call should."""
        if self._raw.strip(_BETWEEN) and not self._unmarked:
            self.warnings.append(why)
        if self._raw.strip(_BETWEEN) or not self.answer.calls:
            out.append(Text(self._raw))
        self._raw, self._name, self._reader, self._inside = "", "", None, False
        self._begun = True

    # -- in a call -------------------------------------------------------------------------------

    def _read_call(self, out: list[Piece]) -> None:
        reader = self._reader
        assert reader is not None
        for at, char in enumerate(self._held, 1):
            reader.feed(char)
            if reader.complete or reader.broken:
                self._take(at)
                self._end_call(reader, out)
                return
            if self._unmarked and reader.foreign:  # JSON that is an answer
                self._take(at)
                self._no_call(out)
                return
        self._take(len(self._held))
        if self._early and reader.streamable and self._is_wanted(reader.name):
            self._pass_on(reader, out)

    def _end_call(self, reader: CallReader, out: list[Piece]) -> None:
        started = self._sent >= 0
        reader.broken |= self._unmarked and not reader.given
        if not reader.broken and self._is_wanted(reader.name):
            self._pass_on(reader, out)
        elif started:  # what was passed on cannot be taken back
            self.warnings.append(_incomplete(reader.name))
        elif self._surplus():
            self.warnings.append(
                "the answer held more than one tool call: only the first is passed on"
            )
        else:
            unknown = f"there is no tool {reader.name!r}: the call stays text"
            self._no_call(out, _NO_CALL if reader.broken else unknown)
            return
        self._reader, self._raw = None, ""
        if reader.broken:
            self._inside = False

    def _is_wanted(self, name: str | None) -> bool:
        return name in self._tools.names and not self._surplus()

    def _surplus(self) -> bool:
        calls = len(self.answer.calls) - (self._sent >= 0)
        return not self._tools.parallel and calls > 0

    def _pass_on(self, reader: CallReader, out: list[Piece], arguments: str | None = None) -> None:
        assert reader.name is not None
        arguments = reader.arguments if arguments is None else arguments
        if self._sent < 0:
            index = len(self.answer.calls)
            out.append(CallStarted(index, f"call_{uuid.uuid4().hex[:24]}", reader.name))
            self.answer.add(out[-1])
            self._sent = 0
        if new := arguments[self._sent :]:
            out.append(CallArguments(len(self.answer.calls) - 1, new))
            self.answer.add(out[-1])
            self._sent = len(arguments)

    def _passed(self, pieces: list[Piece]) -> list[Piece]:
        """Return pieces with neighbouring texts joined; calls are in `answer` already."""
        out: list[Piece] = []
        for piece in pieces:
            if not isinstance(piece, Text):
                out.append(piece)
            elif piece.text:
                self.answer.add(piece)
                if out and isinstance(out[-1], Text):
                    piece = Text(out.pop().text + piece.text)  # type: ignore[union-attr]
                out.append(piece)
        return out


def overlap(text: str, mark: str) -> int:
    """Return the length of the longest end of `text` that begins `mark`, but is not all of it."""
    for length in range(min(len(mark) - 1, len(text)), 0, -1):
        if text.endswith(mark[:length]):
            return length
    return 0


def _incomplete(name: str | None) -> str:
    return f"the arguments of the call of {name} are not the JSON of an object"
