"""An answer as one of Anthropic's messages, whole or as a stream of its events.

message_start
  content_block_start, content_block_delta …, content_block_stop    for each text and each call
message_delta, message_stop │ error
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvstitch.records.answers import Answer
from kvstitch.service.errors import KvstitchError
from kvstitch.service.gateway.answers import answer_stream
from kvstitch.service.gateway.answers.answer_service import AnswerGroup, NumberedEvent
from kvstitch.service.gateway.http.answering import data_line, json_value
from kvstitch.service.gateway.http.openai.envelope import Envelope, finish_reason
from kvstitch.service.gateway.tool_calls.call_parser import CallArguments, CallStarted, Piece, Text
from kvstitch.service.gateway.tool_calls.json_call import object_of
from kvstitch_messages.translation import error_object


class MessageWriter:
    """Builds one message, block by block; whole ones by the same steps as streams."""

    def __init__(self, envelope: Envelope, group: AnswerGroup) -> None:
        self._envelope = envelope
        [self._stream] = group.answers
        self._parser = envelope.parser()
        self._blocks: list[dict[str, Any]] = []
        self._arguments = ""  # of the last block, a call
        self._open = False  # whether the last block is not complete

    def whole(self, results: Sequence[Answer]) -> dict[str, Any]:
        [answer] = results
        self._take(answer.text, answer)
        delta = self._end(answer, with_citations=True)
        return {**self._message(0), "content": self._blocks, **delta.pop("delta"), **delta}

    def event(self, event: NumberedEvent) -> bytes:
        match event.event:
            case answer_stream.Sources(citations):
                message = self._message(self._stream.plan.prompt_tokens)
                if self._envelope.citations:
                    shown = [json_value(each, exclude_none=True) for each in citations]
                    message["kvstitch"] = {"citations": shown}
                return _event("message_start", message=message)
            case answer_stream.TextDelta(text):
                return self._take(text)
            case answer_stream.Finished(answer):
                out = self._take("", answer)
                # Only now is known which passages the answer uses.
                delta = self._end(answer, with_citations=bool(answer.attributions))
                return out + _event("message_delta", **delta) + _event("message_stop")

    def error(self, error: KvstitchError) -> bytes:
        return _event(**error_object(error))

    def _message(self, prompt_tokens: int) -> dict[str, Any]:
        own = {"id": f"msg_{self._envelope.bare_id}", "model": self._envelope.model}
        ended = {"stop_reason": None, "stop_sequence": None, "usage": _usage(prompt_tokens)}
        return {"type": "message", "role": "assistant", **own, "content": [], **ended}

    def _end(self, answer: Answer, *, with_citations: bool) -> dict[str, Any]:
        """Return why the answer ended, its usage and where it comes from."""
        reason = finish_reason(answer.finish_reason, self._parser)
        found = self._stream.stopped_by if reason == "stop" else ""
        why = {"length": "max_tokens", "tool_calls": "tool_use"}.get(reason, "end_turn")
        ended = {"stop_reason": "stop_sequence" if found else why, "stop_sequence": found or None}
        shown = self._envelope.citations and with_citations
        cited = answer.citations if shown else None
        told = self._envelope.details(answer, self._parser, cited)
        usage, cached = answer.usage, answer.usage.prompt_tokens_details.cached_tokens
        return {
            "delta": ended,
            "usage": _usage(usage.prompt_tokens - cached, cached, usage.completion_tokens),
            "kvstitch": json_value(told, exclude=None if shown else {"citations"}),
        }

    def _take(self, text: str, ended: Answer | None = None) -> bytes:
        """Write what is known with more of the text; `ended`: all of it."""
        pieces: list[Piece] = [Text(text)] if text else []
        if self._parser is not None:
            pieces = self._parser.push(text)
            if ended is not None:
                pieces += self._parser.finish(cut=finish_reason(ended.finish_reason) == "length")
        out = b"".join(map(self._piece, pieces))
        return out if ended is None else out + self._close()

    def _piece(self, piece: Piece) -> bytes:
        match piece:
            case Text(text):
                begun = self._open and self._blocks[-1]["type"] == "text"
                out = b"" if begun else self._add(type="text", text="", citations=None)
                self._blocks[-1]["text"] += text
                return out + self._of_block("delta", delta={"type": "text_delta", "text": text})
            case CallStarted(_, id, name):
                used = f"toolu_{id.removeprefix('call_')}"
                return self._add(type="tool_use", id=used, name=name, input={})
            case CallArguments(_, text):
                self._arguments += text
                return self._of_block(
                    "delta", delta={"type": "input_json_delta", "partial_json": text}
                )

    def _add(self, **block: Any) -> bytes:
        out = self._close()
        self._blocks.append(block)
        self._open = True
        return out + self._of_block("start", content_block=block)

    def _close(self) -> bytes:
        if not self._open:
            return b""
        self._open = False
        if self._blocks[-1]["type"] == "tool_use":
            self._blocks[-1]["input"], self._arguments = object_of(self._arguments or "{}"), ""
        return self._of_block("stop")

    def _of_block(self, kind: str, **fields: Any) -> bytes:
        return _event(f"content_block_{kind}", index=len(self._blocks) - 1, **fields)


def _usage(new: int, cached: int = 0, made: int = 0) -> dict[str, Any]:
    """Return usage as Anthropic has it: tokens that were cached are not among the input's."""
    read = {"cache_creation_input_tokens": 0, "cache_read_input_tokens": cached}
    return {"input_tokens": new, **read, "output_tokens": made}


def _event(type: str, **fields: Any) -> bytes:
    return data_line({"type": type, **fields}, type).encode()
