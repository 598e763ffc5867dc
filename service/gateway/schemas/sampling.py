"""How an answer's tokens are chosen, and what form the answer must have."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, JsonValue, model_validator

from service.gateway.schemas.fields import Stops, StrictModel, Unicode
from service.gateway.schemas.logprobs import MAX_LOGPROBS

MAX_GRAMMAR_CHARS = 65_536
MAX_CHOICES = 1024
MAX_BIASED_TOKENS = 1024
MAX_STOP_TOKENS = 128

TokenId = Annotated[int, Field(ge=0, le=2**31 - 1)]
TokenIdText = Annotated[str, Field(pattern=r"^[0-9]{1,9}$")]
Bias = Annotated[float, Field(ge=-100, le=100)]
GrammarText = Annotated[Unicode, Field(min_length=1, max_length=MAX_GRAMMAR_CHARS)]


class Guided(StrictModel):
    """What the whole answer must be: exactly one of these."""

    json_object: Literal[True] | None = Field(None, description="any JSON object")
    json_schema: dict[str, JsonValue] | None = Field(
        None, description="JSON that matches this schema"
    )
    regex: GrammarText | None = Field(
        None, description="a text that matches; no look-around, no back references"
    )
    choice: (
        Annotated[
            list[Annotated[Unicode, Field(min_length=1, max_length=MAX_GRAMMAR_CHARS)]],
            Field(fail_fast=True, min_length=1, max_length=MAX_CHOICES),
        ]
        | None
    ) = Field(None, description="one of these texts")
    grammar: GrammarText | None = Field(None, description="a grammar in Lark's or GBNF's notation")

    @model_validator(mode="after")
    def _exactly_one(self) -> Guided:
        given = [name for name in type(self).model_fields if getattr(self, name) is not None]
        if len(given) != 1:
            names = ", ".join(type(self).model_fields)
            raise ValueError(f"holds {len(given)} forms of an answer: send exactly one of {names}")
        return self


class SamplingFields(StrictModel):
    """Names and meanings are vLLM's, apart from `sampling_top_k`: `top_k` counts passages here."""

    max_tokens: int | None = Field(
        None, ge=0, description="of the answer; 0: the prompt is computed and kept, nothing else"
    )
    temperature: float = Field(0.0, ge=0, le=10, description="0: greedy")
    top_p: float = Field(1.0, gt=0, le=1)
    sampling_top_k: int = Field(
        0, ge=0, le=2**31 - 1, description="only this many most likely tokens; 0: all"
    )
    min_p: float = Field(
        0.0, ge=0, le=1, description="only tokens at least so many times as likely as the likeliest"
    )
    repetition_penalty: float = Field(
        1.0, gt=0, le=10, description="above 1: tokens of prompt and answer get less likely"
    )
    presence_penalty: float = Field(
        0.0, ge=-2, le=2, description="taken off the logits of tokens that the answer holds"
    )
    frequency_penalty: float = Field(
        0.0, ge=-2, le=2, description="taken off for every time that the answer holds the token"
    )
    logit_bias: Annotated[dict[TokenIdText, Bias], Field(max_length=MAX_BIASED_TOKENS)] | None = (
        Field(None, description="added to tokens' logits, by token id", examples=[{"42": -100}])
    )
    min_tokens: int = Field(
        0, ge=0, description="before so many tokens neither an end token nor `stop` ends the answer"
    )
    ignore_eos: bool = Field(
        False, description="the model's own end tokens and stop strings do not end the answer"
    )
    seed: int | None = Field(None, ge=0, le=2**63 - 1)
    stop: Stops = Field(default_factory=list, description="a string or a list of strings")
    stop_token_ids: (
        Annotated[list[TokenId], Field(fail_fast=True, max_length=MAX_STOP_TOKENS)] | None
    ) = Field(None, description="tokens that end the answer, besides the model's own")
    guided: Guided | None = Field(
        None, description="what form the answer must have: every token keeps to it"
    )
    logprobs: int | None = Field(
        None,
        ge=0,
        le=MAX_LOGPROBS,
        description="log-probabilities of the answer's tokens, and of this many most likely ones "
        "in the place of each; none: none",
    )
