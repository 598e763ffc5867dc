"""Bodies of requests to Anthropic's Messages API."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, JsonValue

from kvstitch.service.gateway.schemas.fields import LenientModel, Stops, Unicode
from kvstitch.service.gateway.schemas.openai import CommonRequest, TextOptions


class Part(LenientModel):
    """A piece of a system text, or of what a tool gave."""

    type: str
    text: Unicode | None = None


class Block(Part):
    """A piece of a message: text, a call of a tool, or what one gave."""

    id: Unicode | None = None
    name: Unicode | None = None
    input: dict[str, JsonValue] | None = None
    tool_use_id: Unicode | None = None
    content: Unicode | Annotated[list[Part], Field(fail_fast=True)] | None = None
    is_error: bool | None = None


class SentMessage(LenientModel):
    role: Literal["user", "assistant", "system"]
    content: Unicode | Annotated[list[Block], Field(fail_fast=True)]


class ToolParam(LenientModel):
    """A tool; `type`: custom, one that the client runs."""

    type: str = "custom"
    name: str = Field(pattern=r"^[A-Za-z0-9_.-]{1,128}$")
    description: Unicode | None = None
    input_schema: dict[str, JsonValue] | None = None


class ToolChoice(LenientModel):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class MessagesRequest(CommonRequest):
    """POST /v1/messages: documents are searched for the last text of the user."""

    messages: Annotated[list[SentMessage], Field(fail_fast=True)] = Field(min_length=1)
    system: Unicode | Annotated[list[Part], Field(fail_fast=True)] | None = None
    max_tokens: int | None = Field(None, ge=0)
    stop_sequences: Stops = Field(default_factory=list)
    top_k: int | None = Field(None, ge=0, le=2**31 - 1)
    tools: Annotated[list[ToolParam], Field(fail_fast=True)] | None = None
    tool_choice: ToolChoice | None = None
    output_config: TextOptions | None = None
