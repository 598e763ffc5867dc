"""POST /v1/responses."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, JsonValue

from service.gateway.schemas.fields import Unicode
from service.gateway.schemas.openai.chat import ContentPart
from service.gateway.schemas.openai.common import (
    LENIENT,
    CommonRequest,
    Details,
    JsonSchemaFormat,
)
from service.gateway.tool_calls.tools import NAME_PATTERN

Status = Literal["in_progress", "completed", "incomplete", "failed"]


class InputPart(ContentPart):
    """A piece of an item's text."""


Parts = Annotated[list[InputPart], Field(fail_fast=True)]


class InputItem(BaseModel):
    """A message, a call that an earlier response made, or what a called function gave."""

    model_config = LENIENT

    type: str = "message"
    id: Unicode | None = None
    status: str | None = None
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: Unicode | Parts | None = None
    call_id: Unicode | None = None
    name: Unicode | None = None
    arguments: Unicode | None = Field(None, description="JSON of an object")
    output: Unicode | Parts | None = None


class FunctionTool(BaseModel):
    """A function that the answer may call."""

    model_config = LENIENT

    type: str
    name: str | None = Field(None, pattern=NAME_PATTERN)
    description: Unicode | None = None
    parameters: dict[str, JsonValue] | None = Field(None, description="JSON schema of an object")
    strict: bool | None = None


class FunctionChoice(BaseModel):
    model_config = LENIENT

    type: Literal["function"]
    name: str


class TextFormat(JsonSchemaFormat):
    type: Literal["text", "json_object", "json_schema"]


class TextOptions(BaseModel):
    model_config = LENIENT

    format: TextFormat | None = None


class ResponsesRequest(CommonRequest):
    """POST /v1/responses: documents are searched for the last text of the user."""

    input: Unicode | Annotated[list[InputItem], Field(fail_fast=True, min_length=1)] = Field(
        description="a text, or messages, calls and their results"
    )
    instructions: Unicode | None = Field(None, description="text of the system")
    max_output_tokens: int | None = Field(None, ge=1)
    text: TextOptions | None = None
    tools: Annotated[list[FunctionTool], Field(fail_fast=True)] | None = None
    tool_choice: Literal["none", "auto", "required"] | FunctionChoice | None = None
    parallel_tool_calls: bool | None = None
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    metadata: dict[str, Unicode] | None = Field(
        None, max_length=16, description="comes back with the response; it is not kept"
    )


class OutputText(BaseModel):
    type: Literal["output_text"] = "output_text"
    text: str
    annotations: list[Any] = []
    logprobs: list[Any] = []


class OutputMessage(BaseModel):
    type: Literal["message"] = "message"
    id: str
    status: Status
    role: Literal["assistant"] = "assistant"
    content: list[OutputText]


class OutputCall(BaseModel):
    type: Literal["function_call"] = "function_call"
    id: str
    call_id: str
    name: str
    arguments: str
    status: Status


class InputTokensDetails(BaseModel):
    cached_tokens: int


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
