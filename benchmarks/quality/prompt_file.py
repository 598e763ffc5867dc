"""The prompts of a run: a JSONL file for any model folder.

    {"system": "...", "documents": ["...", ...], "question": "...", "answers": ["...", ...]}

`answers` may be missing or empty; `task` names a group of lines; `sources` says where each document
comes from, as [name of the whole document, number of the piece within it]. Texts are used as they
are, so they must contain templates and separators. Segments are encoded one by one, without special
tokens except BOS in S. A list of token ids may stand for any text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from kvstitch.service.errors import InvalidRequest
from kvstitch.service.gateway.prompts.model_folder import ModelFolder, load_format
from kvstitch.service.gateway.prompts.tokenizer import ServingTokenizer
from kvstitch_tune.prompts import Prompt


def tokenizer_of(folder: Path) -> ServingTokenizer:
    """The served model's tokenizer, with the BOS of its prompt format."""
    files = ModelFolder(folder)
    return ServingTokenizer(files, bos=load_format(files).bos)


def of_file(folder: Path, path: Path) -> list[Prompt]:
    """The prompts of a JSONL file.

    Raises:
        InvalidRequest: a line is wrong; the message names it.
    """
    tokenizer = tokenizer_of(folder)
    return [_of_line(tokenizer, path, number, raw) for number, raw in _lines(path)]


def write(path: Path, prompts: Iterable[Prompt]) -> None:
    """Writes prompts as `of_file` reads them, as token ids."""
    lines = [json.dumps(asdict(prompt), ensure_ascii=False) + "\n" for prompt in prompts]
    path.write_text("".join(lines), encoding="utf-8")


def _of_line(tokenizer: ServingTokenizer, path: Path, number: int, raw: Any) -> Prompt:
    try:
        documents = [_ids(raw_one, tokenizer.encode_text) for raw_one in raw["documents"]]
        question = _ids(raw["question"], tokenizer.encode_template)
        if not question:
            raise ValueError("the question is empty")
        return Prompt(
            str(raw.get("task", path.stem)),
            _ids(raw["system"], partial(_system, tokenizer)),
            tuple(documents),
            question,
            tuple(map(str, raw.get("answers", ()))),
            raw.get("behind", {}),
            _sources(raw.get("sources", ()), len(documents)),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidRequest(
            f"{path}, line {number}: {error!r}; a line is an object with system, documents (a list "
            "of texts), question and, if known, answers",
            field="prompts",
        ) from error


def _sources(raw: list[list[Any]], documents: int) -> tuple[tuple[str, int], ...]:
    found = tuple((str(name), int(number)) for name, number in raw)
    if found and len(found) != documents:
        raise ValueError(f"there are {documents} documents and {len(found)} sources")
    return found


def _ids(raw: str | list[int], encode: Callable[[str], Sequence[int]]) -> tuple[int, ...]:
    return tuple(encode(raw) if isinstance(raw, str) else map(int, raw))


def _lines(path: Path) -> Iterator[tuple[int, Any]]:
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if line.strip():
            try:
                yield number, json.loads(line)
            except ValueError as error:
                raise InvalidRequest(f"{path}, line {number}: {error}", field="prompts") from error


def _system(tokenizer: ServingTokenizer, text: str) -> tuple[int, ...]:
    bos = [] if tokenizer.bos is None else [tokenizer.bos]
    return tuple([*bos, *tokenizer.encode_template(text)])
