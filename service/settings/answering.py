"""The model, its adapters, how it computes, and how documents are cut and found for it."""

import re
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field, ValidationInfo, field_validator

from kvstitch.service.messages.requests import ColdMode, HistoryMode
from kvstitch.service.prompt import PREFIX_MODES
from kvstitch.service.settings.fields import (
    ADDRESS,
    HttpUrl,
    default_model_cache,
    named_folders,
    parts,
)

_LORA_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class ModelSettings(BaseModel):
    """The model, its adapters, and how it computes."""

    model: str = Field(
        "",
        description="model folder, .gguf file, Hugging Face id or name (smollm2); "
        "empty: the demo model",
    )
    tool_form: Literal["auto", "hermes", "llama3_json", "mistral"] = Field(
        "auto", description="how the model writes calls of tools; auto: as its chat template does"
    )
    lora: str = Field(
        "",
        description="LoRA adapters beside the model: NAME=FOLDER, by commas; PEFT's folders",
    )
    lora_precompute: str = Field(
        "",
        description="names of adapters, by commas, with which documents are computed as they come "
        "in, besides the model itself; of others, when a request first needs them",
    )
    model_cache: Path = Field(
        default_factory=default_model_cache, description="folders made of .gguf files"
    )
    calibration: str = Field(
        "",
        description="file that `kvstitch tune` wrote; empty: calibration.json in data_dir, else in "
        "the model's folder; off: none",
    )
    dtype: Literal["auto", "float32", "float16", "bfloat16"] = "auto"
    quantize: Literal["off", "int8", "int4"] = Field(
        "off", description="weights of linear layers rounded to so many bits when they are loaded"
    )
    methods_dir: Path | None = Field(
        None, description="folder with fusion/*.py and eviction/*.py of your own; none: built in"
    )
    draft_tokens: int = Field(
        7,
        ge=0,
        le=31,
        description="most answer tokens that a decode step drafts from the prompt; a draft is kept "
        "as far as it is what is sampled anyway; 0 for none",
    )
    prefill_graphs: bool = Field(
        True,
        description="on a GPU, layers are recorded in spare time and replayed by one launch",
    )
    cold: ColdMode = Field(
        "in_context",
        description="how chunks that are not stored are computed, where a request does not say: "
        "in the prompt's context, or by themselves (as_stored)",
    )
    exact_below: float = Field(
        0.0,
        ge=0,
        le=100,
        description="nats by which tokens must lead; from the first that does not on, a greedy "
        "answer is full prefill's; 0: never",
    )
    history: HistoryMode = Field(
        "compute",
        description="earlier turns of a conversation, where the documents are others than before "
        "and a request does not say: computed, or what the turn before left of them (reuse)",
    )
    gate_sample: float = Field(
        0.0, ge=0, le=1, description="share of answers held against full prefill; 0: no gate"
    )
    gate_window: int = Field(32, ge=1, le=10_000, description="checks a method is judged by")
    gate_min_checks: int = Field(8, ge=1, description="checks before it is judged")
    gate_min_agreement: float = Field(0.75, ge=0, le=1, description="of most likely tokens")
    gate_max_kl: float = Field(0.5, gt=0, description="mean KL to full prefill, in nats")
    gate_recovery: int = Field(32, ge=1, le=10_000, description="good checks until a step back")

    @field_validator("lora")
    @classmethod
    def _named_folders(cls, value: str) -> str:
        names = [part.partition("=")[0].strip() for part in parts(value)]
        for part, name in zip(parts(value), names, strict=True):
            if not _LORA_NAME.fullmatch(name) or not part.partition("=")[2].strip():
                raise ValueError(
                    f"{part!r} is not NAME=FOLDER with a name of up to 64 letters, digits, ., _, -"
                )
            if names.count(name) > 1:
                raise ValueError(f"the name {name} is given twice")
        return value

    @field_validator("lora_precompute")
    @classmethod
    def _known_adapters(cls, value: str, info: ValidationInfo) -> str:
        known = named_folders(info.data.get("lora", ""))
        for name in parts(value):
            if name not in known:
                names = ", ".join(known) or "none"
                raise ValueError(f"there is no adapter {name!r}: lora names {names}")
        return value

    @field_validator("gate_min_checks")
    @classmethod
    def _within_window(cls, value: int, info: ValidationInfo) -> int:
        if value > (window := info.data.get("gate_window", value)):
            raise ValueError(f"must be at most gate_window, {window}")
        return value


class RetrievalSettings(BaseModel):
    """How documents are cut and found. None: what the model folder says, or the default."""

    embedder: str = Field(
        "",
        description="folder of a sentence-embedding model, or its name at embedder_url; "
        "empty: the documents' own, at first all-MiniLM-L6-v2",
    )
    embedder_dtype: Literal["auto", "float32", "bfloat16"] = Field(
        "auto", description="of a local embedder; auto: bfloat16 where the CPU multiplies it"
    )
    embedder_url: HttpUrl = Field(
        "",
        description="base of an OpenAI-like API, http://host:port/v1",
        repr=False,
        json_schema_extra=ADDRESS,
    )
    embedder_key: str = Field("", description="bearer token for embedder_url", repr=False)
    embedder_revision: str = Field("", description="change it with the model behind embedder_url")
    reranker_url: HttpUrl = Field(
        "",
        description="a rerank endpoint, http://host:port/rerank",
        repr=False,
        json_schema_extra=ADDRESS,
    )
    reranker_style: Literal["tei", "cohere"] = Field("tei", description="cohere: Jina, vLLM too")
    reranker_model: str = Field("", description="its name at reranker_url, where one is asked for")
    reranker_key: str = Field("", description="bearer token for reranker_url", repr=False)
    rerank_deadline_s: float = Field(0.3, gt=0, description="then the order of the search stays")
    retrieval: Literal["dense", "sparse", "hybrid"] = Field(
        "hybrid", description="how passages are searched where a request does not say"
    )
    exact_vectors: int = Field(
        200_000, ge=1000, description="chunks of a collection up to which vector search is exact; "
        "above, it reads as many lists as find 99 % of the ten best"
    )  # fmt: skip
    condense: Literal["off", "join", "model"] = Field(
        "join",
        description="what is searched for a question that follows others, where a request does "
        "not say: the question, joined with earlier ones, or rewritten by the model",
    )
    unanswerable: Literal["say", "model", "answer"] = Field(
        "say",
        description="what is done, where a request does not say, if no passage that was found is "
        "about the question: say so; have the model answer without documents; answer from the "
        "passages anyway",
    )
    unanswerable_text: str = Field(
        "", description="what is said then; empty: a sentence in the question's language"
    )
    chunk_tokens: int | None = Field(None, ge=16, le=32768)
    top_k: int | None = Field(None, ge=0, le=1024)
    prefix_mode: str | None = Field(
        None,
        description="what a chunk sees when it is precomputed; the model folder's, else primer",
    )
    companions: int = Field(
        3, ge=1, le=16, description="chunks that others are computed behind: primer, neighbours"
    )
    primers: int = Field(
        3,
        ge=1,
        le=8,
        description="sets of such chunks that each chunk is computed behind at once in prefix mode "
        "primer, with the mean of what it attends to",
    )

    document_prefix: int = Field(
        2048,
        ge=0,
        le=32768,
        description="most tokens of its own document's earlier chunks that a chunk is computed "
        "behind in prefix mode primer, instead of primers, which are left to the first ones; "
        "0: primers for all",
    )

    @field_validator("prefix_mode")
    @classmethod
    def _known_prefix_mode(cls, value: str | None) -> str | None:
        if value is not None and value not in PREFIX_MODES:
            raise ValueError(f"must be one of {', '.join(PREFIX_MODES)}")
        return value
