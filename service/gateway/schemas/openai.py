"""Bodies of requests to OpenAI's routes."""

from typing import Annotated, Literal

from pydantic import BaseModel, Field, JsonValue

from kvstitch.service.gateway.schemas.fields import LenientModel, Stops, Unicode
from kvstitch.service.gateway.schemas.generate import MAX_LOGPROBS, Choices, MethodChoice
from kvstitch.service.gateway.tool_calls.tools import NAME_PATTERN

MAX_CHOICES = 16


class StreamOptions(LenientModel):
    include_usage: bool | None = None


class Extension(Choices):
    """`kvstitch` in the body (`extra_body` of the clients): what to answer from, and how."""

    fusion: MethodChoice | None = Field(None, description="goes before what the model's name says")
    include_citations: bool = Field(True, description="the answer's kvstitch object holds them")


class JsonSchemaFormat(LenientModel):
    name: str | None = None
    description: str | None = None
    schema_: dict[str, JsonValue] | None = Field(None, alias="schema")
    strict: bool | None = None


class ResponseFormat(LenientModel):
    """What an answer must be."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None


class StructuredOutputs(LenientModel):
    """vLLM's: exactly one of these."""

    json_: dict[str, JsonValue] | Unicode | None = Field(None, alias="json")
    regex: Unicode | None = None
    choice: list[Unicode] | None = None
    grammar: Unicode | None = None
    json_object: bool | None = None


class CommonRequest(LenientModel):
    """What every request for an answer has."""

    model: Unicode | None = Field(
        None,
        description="one of GET /v1/models, the model or a LoRA adapter; with a preset: "
        "NAME:FUSION; none: the default",
    )
    temperature: float | None = Field(None, ge=0, le=10, description="0, the default: greedy")
    top_p: float | None = Field(None, gt=0, le=1)
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    kvstitch: Extension | None = None


class SampledRequest(CommonRequest):
    """What chat and text completions share."""

    max_tokens: int | None = Field(None, ge=1)
    seed: int | None = Field(None, ge=-(2**63), le=2**63 - 1)
    stop: Stops = Field(default_factory=list)
    n: int | None = Field(None, ge=1, le=MAX_CHOICES, description="answers to each prompt")
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    logit_bias: dict[str, float] | None = Field(None, description="token id: from -100 to 100")
    response_format: ResponseFormat | None = None
    top_k: int | None = Field(
        None, ge=-1, le=2**31 - 1, description="vLLM's: of the sampler; 0 and -1: all"
    )
    min_p: float | None = Field(None, ge=0, le=1, description="vLLM's")
    repetition_penalty: float | None = Field(None, gt=0, le=10, description="vLLM's")
    min_tokens: int | None = Field(None, ge=0, description="vLLM's")
    ignore_eos: bool | None = Field(None, description="vLLM's")
    stop_token_ids: list[int] | None = Field(None, max_length=128, description="vLLM's")
    structured_outputs: StructuredOutputs | None = Field(None, description="vLLM's")
    guided_json: dict[str, JsonValue] | Unicode | None = Field(None, description="vLLM's")
    guided_regex: Unicode | None = Field(None, description="vLLM's")
    guided_choice: list[Unicode] | None = Field(None, description="vLLM's")
    guided_grammar: Unicode | None = Field(None, description="vLLM's")


class ContentPart(LenientModel):
    """A piece of a message; only texts are taken."""

    type: str
    text: Unicode | None = None
    refusal: Unicode | None = None


class CalledFunction(LenientModel):
    name: Unicode
    # As a kind of its own: `typing` remembers unions whatever their order, which would change here.
    arguments: Annotated[Unicode | dict[str, JsonValue], Field()] | None = Field(
        None, description="JSON of an object; of a call that was cut short, its beginning"
    )


class MessageToolCall(LenientModel):
    """A call that an earlier answer made."""

    id: Unicode | None = None
    type: Literal["function"] | None = "function"
    function: CalledFunction
    index: int | None = Field(None, description="some clients leave it from a stream")


class ChatMessage(LenientModel):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Unicode | Annotated[list[ContentPart], Field(fail_fast=True)] | None = None
    tool_calls: Annotated[list[MessageToolCall], Field(fail_fast=True)] | None = None
    tool_call_id: Unicode | None = None
    refusal: Unicode | None = None


class Described(LenientModel):
    description: Unicode | None = None
    parameters: dict[str, JsonValue] | None = Field(None, description="JSON schema of an object")


class FunctionDefinition(Described):
    """A function that an answer may call."""

    name: str = Field(pattern=NAME_PATTERN)


class ToolDefinition(LenientModel):
    type: str = "function"
    function: FunctionDefinition | None = None


class NamedFunction(LenientModel):
    name: str


class OfFunction(BaseModel):
    type: Literal["function"] = "function"


class NamedTool(OfFunction, LenientModel):
    function: NamedFunction


class OtherChoice(LenientModel):
    """OpenAI's allowed_tools; any other is refused."""

    type: str


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
    tool_choice: Literal["none", "auto", "required"] | NamedTool | OtherChoice | None = Field(
        None, description="whether it must call one, or which; none: auto, if there are tools"
    )
    parallel_tool_calls: bool | None = Field(None, description="false: at most one call")


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


class InputPart(ContentPart):
    """A piece of an item's text."""


Parts = Annotated[list[InputPart], Field(fail_fast=True)]


class InputItem(LenientModel):
    """A message, a call that an earlier response made, or what a called function gave."""

    type: str = "message"
    id: Unicode | None = None
    status: str | None = None
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: Unicode | Parts | None = None
    call_id: Unicode | None = None
    name: Unicode | None = None
    arguments: Unicode | None = Field(None, description="JSON of an object")
    output: Unicode | Parts | None = None


class FunctionTool(Described):
    """A function that the answer may call."""

    type: str
    name: str | None = Field(None, pattern=NAME_PATTERN)
    strict: bool | None = None


class FunctionChoice(NamedFunction):
    type: Literal["function"]


class TextFormat(JsonSchemaFormat):
    type: Literal["text", "json_object", "json_schema"]


class TextOptions(LenientModel):
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
    tool_choice: Literal["none", "auto", "required"] | FunctionChoice | OtherChoice | None = None
    parallel_tool_calls: bool | None = None
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    metadata: dict[str, Unicode] | None = Field(
        None, max_length=16, description="comes back with the response; it is not kept"
    )
