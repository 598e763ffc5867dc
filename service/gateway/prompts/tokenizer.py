"""The tokenizer for serving: text to token ids and back.

It holds two tokenizers made from one tokenizer.json. One obeys added tokens (chat turns, `<think>`,
`<tool_call>`) and encodes the operator's templates. The other has no added tokens, so it encodes
their text like any other text; it is for user text, so that nobody can inject a chat turn or a tool
call through a document.
"""

import hashlib
import json
import re
from array import array
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import lru_cache
from threading import Lock
from typing import Any

from tokenizers import Tokenizer

from kvstitch.retriever.embedders import keep_no_words
from kvstitch.service.errors import ModelRefused
from kvstitch.service.gateway.prompts.detokenizer import TokenPieces
from kvstitch.service.gateway.prompts.model_folder import ModelFolder


class ServingTokenizer:
    """A `kvstitch.service.prompt.Encoder`, and the chunker's token counter. Thread-safe.

    Args:
        bos: Text of the token that starts a prompt. Empty: ask the tokenizer; None: no token.

    Raises:
        ModelRefused: tokenizer.json is missing or unreadable, or `bos` is not in it.

    Attributes:
        revision: Changes when texts may have other ids, or other numbers of them.
        piece: Text and bytes of single tokens.
        added_texts: Texts that a template's encoding makes single tokens of.
    """

    def __init__(self, folder: ModelFolder, *, bos: str | None = "") -> None:
        file = folder.path / "tokenizer.json"
        if not file.is_file():
            raise ModelRefused(
                f"{file} is missing: save the model's fast tokenizer there "
                "(AutoTokenizer.from_pretrained(...).save_pretrained(folder))"
            )
        try:
            content = file.read_text(encoding="utf-8")
            self._obeying, self._plain = _load(content), _load_plain(content)
        except Exception as error:  # the tokenizers library raises bare Exception
            raise ModelRefused(f"{file} cannot be read: {error}") from error
        added = self._obeying.get_added_tokens_decoder()
        self._added = frozenset(added)
        self.added_texts = frozenset(token.content for token in added.values())
        self.piece = TokenPieces(self._obeying, content)
        # Documents are cut again where the count of their tokens may have changed: the first
        # version obeyed added tokens that are not marked special.
        version = b"plain-1:" if all(token.special for token in added.values()) else b"plain-2:"
        self.revision = hashlib.sha256(version + content.encode()).hexdigest()
        # A format's conversations have few parts, and every question is written with them.
        self._obey_part = lru_cache(maxsize=64)(self._obey)
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
        # `encode` keeps the lock of Python: ten megabytes would stop all else.
        ids: list[int] = self._plain.encode_batch([text], add_special_tokens=False)[0].ids
        return ids

    def encode_template(self, template: str, **user_text: str) -> list[int]:
        """Encode `template` with its {names} filled in. Added tokens count only in the template.

        It is encoded as one string, as the model saw it in training. Only if the user text would
        then contribute an added token is each part encoded by itself.
        """
        if not user_text:
            return self._obey(template)
        names = "|".join(map(re.escape, user_text))
        parts = re.split(rf"\{{({names})\}}", template)  # text, name, text, …; other braces stay
        written = [user_text[part] if i % 2 else part for i, part in enumerate(parts)]
        whole: list[int] = self._obeying.encode("".join(written), add_special_tokens=False).ids
        added = [i for text in parts[::2] for i in self._obey_part(text) if i in self._added]
        if [i for i in whole if i in self._added] == added:
            return whole
        return [
            token
            for i, text in enumerate(written)
            for token in (self.encode_text(text) if i % 2 else self._obey_part(text))
        ]

    def encode_offsets(self, text: str) -> list[tuple[int, int]]:
        """(start, end) of each token of user text, in characters."""
        encoding = self._plain.encode_batch([text], add_special_tokens=False)[0]
        offsets: list[tuple[int, int]] = encoding.offsets
        return offsets

    def count_tokens(self, text: str) -> int:
        return len(self._plain.encode_batch([text], add_special_tokens=False)[0])

    def decode(self, ids: Sequence[int]) -> str:
        """Decode; special tokens yield no text, incomplete UTF-8 yields U+FFFD."""
        text: str = self._obeying.decode(list(ids), skip_special_tokens=True)
        return text

    def decode_bytes(self, ids: Sequence[int]) -> str:
        """Decode to the bytes that the tokens stand for, and lose no blank at the beginning."""
        pieces = (self.piece(token).bytes or b"" for token in ids)
        return b"".join(pieces).decode(errors="replace")

    def decoder(self, kept: str) -> Callable[[Sequence[int]], str]:
        """Decodes as `decode`, and writes the token `kept` out, even if it is a special one."""
        token = self._obeying.token_to_id(kept) if kept else None
        if token not in self._added:
            return self.decode

        def decode(ids: Sequence[int]) -> str:
            out, start = "", 0
            for at, each in enumerate(ids):
                if each == token:
                    out, start = out + self.decode(ids[start:at]) + kept, at + 1
            return out + self.decode(ids[start:])

        return decode

    def _obey(self, text: str) -> list[int]:
        ids: list[int] = self._obeying.encode(text, add_special_tokens=False).ids
        return ids


def _load(content: str) -> Tokenizer:
    tokenizer = Tokenizer.from_str(content)
    # Some files configure a truncation, which would silently cut prompts.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    keep_no_words(tokenizer)
    return tokenizer


def _load_plain(content: str) -> Tokenizer:
    """Return the same tokenizer without its added tokens."""
    document: dict[str, Any] = json.loads(content)
    added = document.get("added_tokens") or []
    document["added_tokens"] = []
    plain = _load(json.dumps(document))
    model = document["model"]
    vocabulary = model.get("vocab")
    leaking = [
        token["content"]
        for token in added
        if token["content"] != model.get("unk_token")
        and token["id"] in plain.encode(token["content"], add_special_tokens=False).ids
    ]
    if not leaking or not isinstance(vocabulary, dict):
        return plain
    pairs = (pair.split(" ") if isinstance(pair, str) else pair for pair in model.get("merges", []))
    merged = {part for pair in pairs for part in (*pair, "".join(pair))}
    for text in set(leaking) - merged:
        vocabulary.pop(text, None)
    return _load(json.dumps(document))


class SegmentIdCache:
    """Token ids of chunks that were encoded before; drops the least recently used. Thread-safe."""

    def __init__(self, max_tokens: int = 4_000_000) -> None:
        self._max_tokens = max_tokens
        self._tokens = 0
        self._ids: OrderedDict[tuple[int, str], array[int]] = OrderedDict()
        self._lock = Lock()

    def get(self, chunk_id: int, revision: str, encode: Callable[[], list[int]]) -> list[int]:
        """Return the ids of a chunk; calls `encode` if they are not cached."""
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
