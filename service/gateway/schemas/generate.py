"""Requests of /v1/rag/generate.

Requests are strict: an unknown field, or a number sent as a string, is an error that names it.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, JsonValue, PrivateAttr, model_validator
from pydantic.json_schema import SkipJsonSchema

from kvstitch.records.answers import Condense, Unanswerable
from kvstitch.service.errors import InvalidRequest
from kvstitch.service.gateway.schemas.fields import (
    STRICT,
    NewDocId,
    SentModel,
    Stops,
    StrictModel,
    Title,
    Unicode,
)
from kvstitch.service.gateway.tool_calls.tools import ToolSet
from kvstitch.service.messages.requests import ColdMode, HistoryMode
from kvstitch.service.prompt import Turn

CiteStyle = Literal["none", "marks", "inline"]
MAX_LOGPROBS = 20  # as OpenAI has it, on the chat route and here
MAX_GRAMMAR_CHARS = 65_536
MAX_CHOICES = 1024
MAX_BIASED_TOKENS = 1024
MAX_STOP_TOKENS = 128

TokenId = Annotated[int, Field(ge=0, le=2**31 - 1)]
TokenIdText = Annotated[str, Field(pattern=r"^[0-9]{1,9}$")]
Bias = Annotated[float, Field(ge=-100, le=100)]
GrammarText = Annotated[Unicode, Field(min_length=1, max_length=MAX_GRAMMAR_CHARS)]


_KINDS = ("json_object", "json_schema", "regex", "choice", "grammar")


class Guided(StrictModel):
    """What the whole answer must be: exactly one of these, and `strict`."""

    json_object: Literal[True] | None = Field(None, description="any JSON object")
    json_schema: dict[str, JsonValue] | None = Field(
        None, description="JSON that matches this schema"
    )
    regex: GrammarText | None = Field(
        None, description="a text that matches; no look-around, no back references"
    )
    choice: (
        Annotated[
            list[GrammarText],
            Field(fail_fast=True, min_length=1, max_length=MAX_CHOICES),
        ]
        | None
    ) = Field(None, description="one of these texts")
    grammar: GrammarText | None = Field(None, description="a grammar in Lark's or GBNF's notation")
    strict: bool = Field(
        False,
        description="refuse a schema that answers cannot be held to in full; else the rest is "
        "checked afterwards, and `warnings` say so",
    )
    _schemas: dict[str, dict[str, Any]] = PrivateAttr(default_factory=dict)
    _strict_schemas: list[str] = PrivateAttr(default_factory=list)

    @classmethod
    def of_schemas(
        cls, grammar: str, schemas: dict[str, dict[str, Any]], strict: list[str]
    ) -> "Guided":
        """Make one of a grammar in Lark's notation in which schemas stand as `%json @NAME`, of any
        length; `strict` names those that are refused where they cannot be held in full."""
        made = cls.model_construct(grammar=grammar)
        made._schemas, made._strict_schemas = schemas, strict
        return made

    @property
    def schemas(self) -> dict[str, dict[str, Any]]:
        """The schemas that stand in `grammar`, by name."""
        return self._schemas

    @property
    def strict_schemas(self) -> list[str]:
        """Names of those that are refused where they cannot be held in full."""
        return self._strict_schemas

    @property
    def kind(self) -> str:
        """Which of them it is."""
        return next(name for name in _KINDS if getattr(self, name) is not None)

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        given = [name for name in _KINDS if getattr(self, name) is not None]
        if len(given) != 1:
            names = ", ".join(_KINDS)
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


MAX_INLINE_DOCUMENTS = 64
MAX_NAMED_DOCUMENTS = 10_000


class MethodChoice(SentModel):
    """A method by name, for fusion also `exact`, `balanced` or `fastest`; every other field is a
    parameter of it (see GET /v1/methods)."""

    model_config = ConfigDict(extra="allow", strict=True)

    method: str = Field(examples=["a3", "pie", "vanilla"])

    @property
    def parameters(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class Message(StrictModel):
    """One turn of a conversation; the user's last one is the question."""

    role: Literal["system", "user", "assistant"]
    content: Unicode


Messages = Annotated[list[Message], Field(fail_fast=True, min_length=1)]


class InlineDocument(StrictModel):
    """A document that comes with the request: cited, cached, but not kept in the catalog."""

    text: Unicode
    title: Title = ""
    doc_id: NewDocId | None = Field(None, description="what citations call it; else inline-1, …")


Profile = Literal["fast", "balanced", "exact"]


MAX_NEIGHBOURS = 4


class SearchChoices(StrictModel):
    """Which passages are searched for."""

    collection: Unicode | None = Field(None, description="search here; none: `default`")
    top_k: int | None = Field(None, ge=0, description="passages wanted; 0: none")
    documents: (
        Annotated[list[Unicode], Field(fail_fast=True, max_length=MAX_NAMED_DOCUMENTS)] | None
    ) = Field(None, description="only passages of these documents")
    filter: dict[str, JsonValue] | None = Field(
        None, description="only documents whose metadata passes, e.g. {'year': {'gte': 2020}}"
    )
    retrieval: Literal["dense", "sparse", "hybrid"] | None = Field(
        None, description="by meaning, by words, or both; none: the service's default"
    )
    rerank: bool = Field(
        False, description="ask the service's reranker, which has a deadline of its own"
    )
    min_score: float | None = Field(
        None,
        allow_inf_nan=False,
        description="leave out passages whose `score` is lower: with rerank the reranker's score; "
        "else the cosine (dense), BM25 (sparse) or both by weights, 0 to 1 (hybrid)",
    )
    neighbours: int = Field(
        0,
        ge=0,
        le=MAX_NEIGHBOURS,
        description="pieces of its document before and behind each passage that come with it",
    )


class Choices(SearchChoices):
    """What to answer from, and how: the fields that OpenAI's routes take as `kvstitch`."""

    inline_documents: (
        Annotated[
            list[InlineDocument],
            Field(fail_fast=True, min_length=1, max_length=MAX_INLINE_DOCUMENTS),
        ]
        | None
    ) = Field(None, description="answer from these texts, all of them, instead of searching")
    fusion: MethodChoice | None = Field(
        None,
        description="none: the service's default (GET /v1/methods); `auto` with `quality`: the "
        "cheapest that `kvstitch tune` has measured to agree that often with full prefill",
    )
    eviction: MethodChoice | None = None
    profile: Profile | None = Field(
        None,
        description="instead of fusion and eviction: `fast` recomputes nothing, `balanced` is the "
        "service's default, `exact` is full prefill; none of them evicts",
    )
    cold: ColdMode | None = Field(
        None,
        description="how chunks that are not stored are computed: `in_context` of the prompt, or "
        "`as_stored`, by themselves, so that later answers are the same; none: the service's "
        "default",
    )
    exact_below: float | None = Field(
        None,
        ge=0,
        le=100,
        description="nats: at the first token that leads the next best by less, prompt and answer "
        "so far are computed in full, and the rest is full prefill's; greedy answers alone; 0: "
        "never; none: the service's default",
    )
    history: HistoryMode | None = Field(
        None,
        description="earlier turns, where the documents are others than before: `compute` them, or "
        "`reuse` what the turn before left, repaired out of the method's ratio like documents; "
        "none: the service's default",
    )
    prefix_cache: bool = Field(
        True,
        description="false: compute the whole prompt, and keep nothing of it for later ones",
    )
    include_text: bool = Field(False, description="citations hold the passage's text")
    condense: Condense | None = Field(
        None,
        description="what is searched for a question that follows others: `off`, the question as "
        "it is; `join`, together with the earlier ones; `model`, what the model makes of it; none: "
        "the service's default",
    )
    unanswerable: Unanswerable | None = Field(
        None,
        description="where no passage that was found is about the question: `say` so, have the "
        "`model` answer without documents, or `answer` from the passages anyway; none: the "
        "service's default",
    )
    attribute: bool = Field(
        True, description="say which passages support which sentences of the answer"
    )
    cite: CiteStyle = Field(
        "none",
        description="`marks` puts [1] behind the sentences of a whole answer that passage 1 "
        "supports; `inline` asks the model to write such marks",
    )


class GenerateRequest(Choices, SamplingFields):
    """POST /v1/rag/generate. Fields left out take the model's defaults."""

    model_config = ConfigDict(
        **STRICT,
        json_schema_extra={"oneOf": [{"required": ["question"]}, {"required": ["messages"]}]},
    )

    question: Unicode | SkipJsonSchema[None] = Field(
        None, description="this, or messages", json_schema_extra={"pattern": r"\S"}
    )
    messages: Messages | SkipJsonSchema[None] = None
    continue_final_message: bool = Field(
        False, description="the answer goes on where the last message, an assistant's, ends"
    )
    adapter: Unicode | None = Field(
        None,
        description="the LoRA adapter that answers, one of GET /v1/models with a `parent`; none: "
        "that of the API key, else the model itself",
    )
    stream: bool = False
    include_tokens: bool = Field(
        False, description="the answer's cache report says what became of every prompt token"
    )
    explain: bool = Field(
        False, description="a dry run: say what would be loaded and computed, generate nothing"
    )

    @property
    def turns(self) -> list[Turn]:
        """The conversation as it was sent."""
        if self.messages is None:
            return [Turn("user", self.question or "")]
        return [Turn(message.role, message.content) for message in self.messages]

    @property
    def tools(self) -> ToolSet | None:
        """Functions that the answer may call; only OpenAI's routes take them."""
        return None

    def check_fields(self) -> None:
        """Raise InvalidRequest for fields that do not go together."""
        if (self.question is None) == (self.messages is None):
            raise InvalidRequest(
                "send either question or messages"
                if self.question is not None
                else "question is missing: send it, or messages",
                field="question",
            )
        if self.question is not None and not self.question.strip():
            raise InvalidRequest("question is empty: send the question's text", field="question")
        # Marks that are put into the finished text would differ from what was sent or counted.
        for name, asked in (("stream", self.stream), ("logprobs", self.logprobs is not None)):
            if self.cite == "marks" and asked:
                raise InvalidRequest(
                    f"cite: marks are put into whole answers without {name}: leave {name} out, or "
                    "read `attributions`",
                    field="cite",
                )
        for name in (*SearchChoices.model_fields, "condense") if self.inline_documents else ():
            if getattr(self, name) not in (None, False):
                raise InvalidRequest(
                    f"{name} chooses among stored documents, and inline_documents are used instead "
                    "of these: leave one of the two out",
                    field=name,
                )
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidRequest(
                f"min_tokens is {self.min_tokens}, max_tokens {self.max_tokens}: lower it",
                field="min_tokens",
            )
        for name in ("min_tokens", "ignore_eos") if self.guided is not None else ():
            if getattr(self, name):
                raise InvalidRequest(
                    f"{name}: with guided the form of the answer says where it ends: leave it out",
                    field=name,
                )


class ConversationRequest(GenerateRequest):
    """A conversation with its tools; `question` is its last text of the user."""

    _turns: list[Turn] = PrivateAttr()
    _tools: ToolSet | None = PrivateAttr()

    @classmethod
    def of(cls, turns: Sequence[Turn], tools: ToolSet | None, **fields: Any) -> Self:
        """Make one; `fields` are those of GenerateRequest but for question and messages."""
        last = turns[-1].text if turns and turns[-1].role == "system" else ""
        question = next((turn.text for turn in reversed(turns) if turn.role == "user"), last)
        out = cls(question=question, **fields)
        out._turns, out._tools = list(turns), tools
        return out

    @property
    def turns(self) -> list[Turn]:
        return self._turns

    @property
    def tools(self) -> ToolSet | None:
        return self._tools
