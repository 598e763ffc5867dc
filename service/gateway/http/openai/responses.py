"""The Responses API's object, and its stream of events in OpenAI's order.

response.created, response.in_progress
  output_item.added │ content_part.added, output_text.delta …, output_text.done,
                    │ content_part.done
                    │ or function_call_arguments.delta …, .done
  output_item.done
response.completed │ response.incomplete │ response.failed
"""

import time
from collections.abc import Sequence
from typing import Any

from kvstitch.records.answers import Answer, Citation
from kvstitch.service.errors import KvstitchError
from kvstitch.service.gateway.answers.answer_service import NumberedEvent
from kvstitch.service.gateway.answers.answer_stream import Finished, Sources, TextDelta
from kvstitch.service.gateway.http.answering import data_line
from kvstitch.service.gateway.http.openai.envelope import Envelope, finish_reason
from kvstitch.service.gateway.http.problems import openai_error
from kvstitch.service.gateway.schemas.openai import ResponsesRequest
from kvstitch.service.gateway.schemas.openai_answers import (
    InputTokensDetails,
    OutputCall,
    OutputMessage,
    OutputText,
    ResponseObject,
    ResponsesUsage,
    Status,
)
from kvstitch.service.gateway.tool_calls.call_parser import CallArguments, CallStarted, Piece, Text


class ResponseWriter:
    """Builds one response, item by item.

    Whole answers and streams are written by the same steps, so that a stream ends with the same
    object that a whole answer is.
    """

    def __init__(self, envelope: Envelope, body: ResponsesRequest) -> None:
        self._envelope = envelope
        self._body = body
        self._parser = envelope.parser()
        self._output: list[OutputMessage | OutputCall] = []
        self._citations: list[Citation] = []
        self._number = 0  # of the next event
        self._open = False  # whether the last item is not complete

    def event(self, event: NumberedEvent) -> bytes:
        match event.event:
            case Sources(citations):
                self._citations = citations
                return self._whole_response("created") + self._whole_response("in_progress")
            case TextDelta(text):
                return self._pieces([Text(text)] if self._parser is None else self._push(text))
            case Finished(response):
                return self._finish(response)

    def error(self, error: KvstitchError) -> bytes:
        told = openai_error(error)
        response = self._object("failed")
        response.error = {"code": "server_error", "message": told["message"]}
        return self._event(
            "error", code=told["code"], message=told["message"], param=told["param"]
        ) + self._event("response.failed", response=response.model_dump(mode="json"))

    def whole(self, results: Sequence[Answer]) -> ResponseObject:
        [answer] = results
        self._pieces([Text(answer.text)] if self._parser is None else self._push(answer.text))
        self._finish(answer)
        return self._end_response(answer)

    def _push(self, text: str) -> list[Piece]:
        assert self._parser is not None
        return self._parser.push(text)

    def _pieces(self, pieces: Sequence[Piece]) -> bytes:
        return b"".join(map(self._piece, pieces))

    def _piece(self, piece: Piece) -> bytes:
        match piece:
            case Text(text):
                return self._add_text(text)
            case CallStarted(_, id, name):
                out = self._close()
                item_id = f"fc_{id.removeprefix('call_')}"
                item = OutputCall(
                    id=item_id, call_id=id, name=name, arguments="", status="in_progress"
                )
                return out + self._add(item)
            case CallArguments(_, text):
                call = self._output[-1]
                assert isinstance(call, OutputCall)
                call.arguments += text
                return self._of_item("response.function_call_arguments.delta", delta=text)

    def _add_text(self, text: str) -> bytes:
        out = b""
        if not (self._open and isinstance(self._output[-1], OutputMessage)):
            number = f"_{len(self._output)}" if self._output else ""
            message = OutputMessage(
                id=f"msg_{self._envelope.bare_id}{number}", status="in_progress", content=[]
            )
            out += self._close() + self._add(message)
            message.content.append(OutputText(text=""))
            out += self._part("response.content_part.added", part=_dump(message.content[0]))
        item = self._output[-1]
        assert isinstance(item, OutputMessage)
        item.content[0].text += text
        return out + self._part("response.output_text.delta", delta=text, logprobs=[])

    def _add(self, item: OutputMessage | OutputCall) -> bytes:
        self._output.append(item)
        self._open = True
        return self._item("response.output_item.added")

    def _close(self, status: Status = "completed") -> bytes:
        if not self._open:
            return b""
        item = self._output[-1]
        item.status, self._open = status, False
        if isinstance(item, OutputMessage):
            text = item.content[0]
            out = self._part("response.output_text.done", text=text.text, logprobs=[])
            out += self._part("response.content_part.done", part=_dump(text))
        else:
            out = self._of_item(
                "response.function_call_arguments.done", arguments=item.arguments, name=item.name
            )
        return out + self._item("response.output_item.done")

    def _finish(self, answer: Answer) -> bytes:
        self._citations = answer.citations  # by now they say what the answer uses
        cut = finish_reason(answer.finish_reason) == "length"
        out = b"" if self._parser is None else self._pieces(self._parser.finish(cut=cut))
        if not self._output:  # an answer without a word is a message all the same
            out += self._add_text("")
        out += self._close("incomplete" if cut else "completed")
        response = self._end_response(answer)
        return out + self._event(f"response.{response.status}", response=_dump(response))

    def _end_response(self, answer: Answer) -> ResponseObject:
        cut = finish_reason(answer.finish_reason) == "length"
        response = self._object("incomplete" if cut else "completed")
        response.completed_at = None if cut else int(time.time())
        response.incomplete_details = {"reason": "max_output_tokens"} if cut else None
        usage = answer.usage
        response.usage = ResponsesUsage(
            input_tokens=usage.prompt_tokens,
            input_tokens_details=InputTokensDetails(
                cached_tokens=usage.prompt_tokens_details.cached_tokens
            ),
            output_tokens=usage.completion_tokens,
            total_tokens=usage.total_tokens,
        )
        citations = self._citations if self._envelope.citations else None
        response.kvstitch = self._envelope.details(answer, self._parser, citations)
        return response

    def _object(self, status: Status) -> ResponseObject:
        body = self._body
        format = None if body.text is None else body.text.format
        shown = {"type": "text"} if format is None else _dump(format, exclude_none=True)
        if shown["type"] == "json_schema":
            shown = {"name": "answer", "strict": True, **shown}
        tools = [_dump(tool) for tool in body.tools or [] if tool.type == "function"]
        choice = body.tool_choice or "auto"
        return ResponseObject(
            id=f"resp_{self._envelope.bare_id}",
            created_at=self._envelope.created,
            status=status,
            instructions=body.instructions,
            max_output_tokens=body.max_output_tokens,
            model=self._envelope.model,
            output=list(self._output),
            parallel_tool_calls=body.parallel_tool_calls is not False,
            temperature=body.temperature or 0.0,
            top_p=1.0 if body.top_p is None else body.top_p,
            presence_penalty=body.presence_penalty or 0.0,
            frequency_penalty=body.frequency_penalty or 0.0,
            text={"format": shown},
            tool_choice=choice if isinstance(choice, str) else _dump(choice),
            tools=tools,
            metadata=body.metadata or {},
        )

    def _event(self, type: str, **fields: Any) -> bytes:
        number, self._number = self._number, self._number + 1
        return data_line({"type": type, "sequence_number": number, **fields}, type).encode()

    def _whole_response(self, status: str) -> bytes:
        return self._event(f"response.{status}", response=_dump(self._object("in_progress")))

    def _item(self, type: str) -> bytes:
        number = len(self._output) - 1
        return self._event(type, output_index=number, item=_dump(self._output[number]))

    def _of_item(self, type: str, **fields: Any) -> bytes:
        number = len(self._output) - 1
        return self._event(type, output_index=number, item_id=self._output[number].id, **fields)

    def _part(self, type: str, **fields: Any) -> bytes:
        return self._of_item(type, content_index=0, **fields)


def _dump(model: Any, **options: Any) -> dict[str, Any]:
    out: dict[str, Any] = model.model_dump(mode="json", by_alias=True, **options)
    return out
