"""The tokenizer for serving: text to token ids and back.

It holds two tokenizers made from one tokenizer.json. One obeys special tokens and encodes our own
templates; the other encodes their text like any other text and is for user text, so that nobody
can inject a chat turn through a document.
"""

from __future__ import annotations

import hashlib
import re
from array import array
from collections import OrderedDict
from collections.abc import Callable, Sequence
from threading import Lock

from tokenizers import Tokenizer

from service.errors import ModelRefused
from service.gateway.prompts.model_folder import ModelFolder


class ServingTokenizer:
    """A `service.prompt.Encoder`, and the chunker's token counter. Thread-safe."""

    def __init__(self, folder: ModelFolder, *, bos: str | None = "") -> None:
        """Load tokenizer.json.

        Args:
            folder: The model folder.
            bos: Text of the token that starts a prompt. Empty: ask the tokenizer; None: no token.

        Raises:
            ModelRefused: tokenizer.json is missing or unreadable, or `bos` is not in it.
        """
        file = folder.path / "tokenizer.json"
        if not file.is_file():
            raise ModelRefused(
                f"{file} is missing: save the model's fast tokenizer there "
                "(AutoTokenizer.from_pretrained(...).save_pretrained(folder))"
            )
        try:
            content = file.read_text(encoding="utf-8")
            self._obeying, self._plain = _load(content), _load(content)
        except Exception as error:  # the tokenizers library raises bare Exception
            raise ModelRefused(f"{file} cannot be read: {error}") from error
        self._plain.encode_special_tokens = True
        self._special = frozenset(
            i for i, token in self._obeying.get_added_tokens_decoder().items() if token.special
        )
        self.revision = hashlib.sha256(b"plain-1:" + content.encode()).hexdigest()
        self.bos = self._find_bos(folder, bos)
        self.bos_text = None if self.bos is None else self._obeying.id_to_token(self.bos)

    def _find_bos(self, folder: ModelFolder, bos: str | None) -> int | None:
        if bos is None:
            return None
        if not bos:
            if start := self._obeying.encode("", add_special_tokens=True).ids[:1]:
                return int(start[0])
            if not folder.tokenizer_config.get("add_bos_token"):
                return None
            bos = folder.special_text("bos_token")
        found = None if bos is None else self._obeying.token_to_id(bos)
        if found is None:
            raise ModelRefused(
                f"{bos!r} is to start every prompt but is not in tokenizer.json: correct `bos` "
                "in kvstitch.json or bos_token in tokenizer_config.json"
            )
        return int(found)

    def encode_text(self, text: str) -> list[int]:
        ids: list[int] = self._plain.encode(text, add_special_tokens=False).ids
        return ids

    def encode_template(self, template: str, **user_text: str) -> list[int]:
        """Encode `template` with its {names} filled in. Special tokens count only in the template.

        It is encoded as one string, as the model saw it in training. Only if the user text would
        then contribute a special token is each part encoded by itself.
        """
        whole = self._obey(fill(template, user_text))
        if not user_text:
            return whole
        parts = _split(template, user_text)
        template_ids = [self._obey(text) for name, text in parts if name is None]
        if self._specials(whole) == sum(map(self._specials, template_ids)):
            return whole
        pieces = iter(template_ids)
        return [
            token
            for name, _ in parts
            for token in (next(pieces) if name is None else self.encode_text(user_text[name]))
        ]

    def encode_offsets(self, text: str) -> list[tuple[int, int]]:
        """(start, end) of each token of user text, in characters."""
        offsets: list[tuple[int, int]] = self._plain.encode(text, add_special_tokens=False).offsets
        return offsets

    def decode(self, ids: Sequence[int]) -> str:
        """Decode; special tokens yield no text, incomplete UTF-8 yields U+FFFD."""
        text: str = self._obeying.decode(list(ids), skip_special_tokens=True)
        return text

    def _obey(self, text: str) -> list[int]:
        ids: list[int] = self._obeying.encode(text, add_special_tokens=False).ids
        return ids

    def _specials(self, ids: Sequence[int]) -> int:
        return sum(token in self._special for token in ids)


def fill(template: str, user_text: dict[str, str]) -> str:
    """Replace each {name} of `user_text` in `template`, in one pass; other braces stay."""
    return "".join(
        text if name is None else user_text[name] for name, text in _split(template, user_text)
    )


def _split(template: str, user_text: dict[str, str]) -> list[tuple[str | None, str]]:
    """The template's parts in order: (None, text) or (name, "{name}")."""
    if not user_text:
        return [(None, template)]
    names = "|".join(map(re.escape, user_text))
    parts = re.split(rf"(\{{(?:{names})\}})", template)
    return [(p[1:-1] if i % 2 else None, p) for i, p in enumerate(parts) if p]


def _load(content: str) -> Tokenizer:
    tokenizer = Tokenizer.from_str(content)
    # Some files configure a truncation, which would silently cut prompts.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


class SegmentIdCache:
    """Token ids of chunks that were encoded before; drops the least recently used. Thread-safe."""

    def __init__(self, max_tokens: int = 4_000_000) -> None:
        self._max_tokens = max_tokens
        self._tokens = 0
        self._ids: OrderedDict[tuple[int, str], array[int]] = OrderedDict()
        self._lock = Lock()

    def get(self, chunk_id: int, revision: str, encode: Callable[[], list[int]]) -> list[int]:
        """The ids of a chunk; calls `encode` if they are not cached."""
        key = (chunk_id, revision)
        with self._lock:
            if (found := self._ids.get(key)) is not None:
                self._ids.move_to_end(key)
                return found.tolist()
        ids = encode()
        with self._lock:
            if key not in self._ids:
                self._ids[key] = array("I", ids)
                self._tokens += len(ids)
            while self._tokens > self._max_tokens:
                self._tokens -= len(self._ids.popitem(last=False)[1])
        return ids
