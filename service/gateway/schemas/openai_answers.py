"""Answers of OpenAI's routes, and the list of models."""

from typing import Any, Generic, Literal, TypeVar

from pydantic import BaseModel, Field, SerializerFunctionWrapHandler, model_serializer

from kvstitch.records.answers import AnswerDetails, Citation, TokenLogprob, Usage
from kvstitch.records.base import record
from kvstitch.service.gateway.schemas.openai import OfFunction

FinishReason = Literal["stop", "length", "tool_calls"]
Status = Literal["in_progress", "completed", "incomplete", "failed"]


@record
class Details(AnswerDetails):
    """`kvstitch` in an answer: where it came from and what it cost."""

    citations: list[Citation] | None = None


class ModelOut(BaseModel):
    """A model as OpenAI lists it; `fusion` is what its preset stands for, `parent` the model that
    it is a LoRA adapter of."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "kvstitch"
    parent: str | None = None
    fusion: dict[str, Any] | None = None
    details: dict[str, Any] | None = Field(None, description="of the model itself")


class ModelList(BaseModel):
    object: Literal["list"] = "list"
    data: list[ModelOut]


class UrlCitation(BaseModel):
    """The source of `content[start_index:end_index]`."""

    start_index: int
    end_index: int
    title: str
    url: str


class Annotation(BaseModel):
    type: Literal["url_citation"] = "url_citation"
    url_citation: UrlCitation


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


class OutputText(BaseModel):
    type: Literal["output_text"] = "output_text"
    text: str
    annotations: list[Any] = []
    logprobs: list[Any] = []


class OutputItem(BaseModel):
    id: str
    status: Status


class OutputMessage(OutputItem):
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    content: list[OutputText]


class OutputCall(OutputItem):
    type: Literal["function_call"] = "function_call"
    call_id: str
    name: str
    arguments: str


class InputTokensDetails(BaseModel):
    """`cache_write_tokens` is 0: documents are written when they are ingested."""

    cached_tokens: int
    cache_write_tokens: int = 0


class OutputTokensDetails(BaseModel):
    reasoning_tokens: int = 0


class ResponsesUsage(BaseModel):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails = OutputTokensDetails()
    total_tokens: int


class ResponseObject(BaseModel):
    """A response; nothing of it is kept."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    completed_at: int | None = None
    status: Status
    error: dict[str, Any] | None = None
    incomplete_details: dict[str, Any] | None = None
    instructions: str | None
    max_output_tokens: int | None
    model: str
    output: list[OutputMessage | OutputCall]
    parallel_tool_calls: bool
    temperature: float
    top_p: float
    presence_penalty: float
    frequency_penalty: float
    text: dict[str, Any]
    tool_choice: Any
    tools: list[Any]
    metadata: dict[str, str]
    usage: ResponsesUsage | None = None
    kvstitch: Details | None = None
    # What this service does not do, in the words of OpenAI's clients.
    store: Literal[False] = False
    background: Literal[False] = False
    truncation: Literal["disabled"] = "disabled"
    service_tier: Literal["default"] = "default"
    top_logprobs: int = 0
    max_tool_calls: None = None
    previous_response_id: None = None
    prompt_cache_key: None = None
    safety_identifier: None = None
    reasoning: dict[str, None] = {"effort": None, "summary": None}
