"""POST /v1/chat/completions and POST /v1/completions."""

from __future__ import annotations

from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import (
    BaseModel,
    Field,
    JsonValue,
    SerializerFunctionWrapHandler,
    model_serializer,
)

from kvstitch.records.answers import TokenLogprob, Usage
from service.gateway.schemas.fields import Unicode
from service.gateway.schemas.generate import MAX_LOGPROBS
from service.gateway.schemas.openai.common import LENIENT, Details, SampledRequest
from service.gateway.tool_calls.tools import NAME_PATTERN


class UrlCitation(BaseModel):
    """The source of `content[start_index:end_index]`."""

    start_index: int
    end_index: int
    title: str
    url: str


class Annotation(BaseModel):
    type: Literal["url_citation"] = "url_citation"
    url_citation: UrlCitation


FinishReason = Literal["stop", "length", "tool_calls"]


class ContentPart(BaseModel):
    """A piece of a message; only texts are taken."""

    model_config = LENIENT

    type: str
    text: Unicode | None = None
    refusal: Unicode | None = None


class CalledFunction(BaseModel):
    model_config = LENIENT

    name: Unicode
    arguments: Unicode | dict[str, JsonValue] | None = Field(
        None, description="JSON of an object; of a call that was cut short, its beginning"
    )


class MessageToolCall(BaseModel):
    """A call that an earlier answer made."""

    model_config = LENIENT

    id: Unicode | None = None
    type: Literal["function"] | None = "function"
    function: CalledFunction
    index: int | None = Field(None, description="some clients leave it from a stream")


class ChatMessage(BaseModel):
    model_config = LENIENT

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Unicode | Annotated[list[ContentPart], Field(fail_fast=True)] | None = None
    tool_calls: Annotated[list[MessageToolCall], Field(fail_fast=True)] | None = None
    tool_call_id: Unicode | None = None
    refusal: Unicode | None = None


class FunctionDefinition(BaseModel):
    """A function that an answer may call."""

    model_config = LENIENT

    name: str = Field(pattern=NAME_PATTERN)
    description: Unicode | None = None
    parameters: dict[str, JsonValue] | None = Field(None, description="JSON schema of an object")


class ToolDefinition(BaseModel):
    model_config = LENIENT

    type: str = "function"
    function: FunctionDefinition | None = None


class NamedFunction(BaseModel):
    model_config = LENIENT

    name: str


class OfFunction(BaseModel):
    type: Literal["function"] = "function"


class NamedTool(OfFunction):
    model_config = LENIENT

    function: NamedFunction


Tools = Annotated[list[ToolDefinition], Field(fail_fast=True)]


class ChatRequest(SampledRequest):
    """POST /v1/chat/completions: documents are searched for the last user message."""

    messages: Annotated[list[ChatMessage], Field(fail_fast=True)] = Field(min_length=1)
    continue_final_message: bool | None = Field(
        None, description="the answer goes on where the last message, an assistant's, ends"
    )
    add_generation_prompt: bool | None = Field(
        None, description="vLLM's; false only with continue_final_message"
    )
    max_completion_tokens: int | None = Field(None, ge=1, description="goes before max_tokens")
    logprobs: bool | None = Field(None, description="of the answer's tokens")
    top_logprobs: int | None = Field(
        None, ge=0, le=MAX_LOGPROBS, description="with logprobs: of this many most likely ones, too"
    )
    tools: Tools | None = Field(None, description="functions that the answer may call")
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = Field(
        None, description="whether it must call one, or which; none: auto, if there are tools"
    )
    parallel_tool_calls: bool | None = Field(None, description="false: at most one call")


class ToolCallOut(OfFunction):
    id: str
    function: dict[str, str]


class AnswerMessage(BaseModel):
    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: None = None
    annotations: list[Annotation] = []
    tool_calls: list[ToolCallOut] | None = None

    @model_serializer(mode="wrap")
    def _without_no_calls(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave the field out where nothing is called: OpenAI does, and some clients rely on it."""
        out: dict[str, Any] = write(self)
        if self.tool_calls is None:
            del out["tool_calls"]
        return out


class ChatLogprobs(BaseModel):
    content: list[TokenLogprob]
    refusal: None = None


class Choice(BaseModel):
    index: int = 0


class ChatChoice(Choice):
    message: AnswerMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: FinishReason


C = TypeVar("C", bound=Choice)


class CompletionObject(BaseModel, Generic[C]):
    id: str
    object: str
    created: int
    model: str
    choices: list[C]
    usage: Usage
    kvstitch: Details


class ChatCompletion(CompletionObject[ChatChoice]):
    object: Literal["chat.completion"] = "chat.completion"


class CompletionRequest(SampledRequest):
    """POST /v1/completions: documents are searched for the prompt, which is the question."""

    prompt: (
        Unicode
        | Annotated[
            list[Unicode | int | Annotated[list[int], Field(fail_fast=True)]], Field(fail_fast=True)
        ]
    ) = Field(description="a text, or a list of texts, each of which is answered")
    logprobs: int | None = Field(
        None, ge=0, le=5, description="of the answer's tokens and of this many most likely ones"
    )


class TextLogprobs(BaseModel):
    """Four lists of the same length. A token that is no whole text is written as its bytes,
    `bytes:\\xe2\\x80`; top_logprobs always hold the token itself, too."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class TextChoice(Choice):
    text: str
    logprobs: TextLogprobs | None = None
    finish_reason: Literal["stop", "length"]


class Completion(CompletionObject[TextChoice]):
    object: Literal["text_completion"] = "text_completion"
