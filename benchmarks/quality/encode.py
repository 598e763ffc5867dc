"""Text samples to token ids, for any model folder: chat template, chunks of a fixed size.

The context is encoded once and cut between ids, so all methods, full prefill included, see the same
tokens.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.quality.sample import Sample, TextSample
from service.gateway.api import (
    INSTRUCTION,
    ModelFolder,
    ServingTokenizer,
    from_chat_template,
    load_format,
    without_bos,
)

_QUESTION = "Question: {question}"


class Encoder:
    """Encodes samples with the served model's tokenizer and the BOS of its prompt format."""

    def __init__(self, folder: Path) -> None:
        files = ModelFolder(folder)
        fmt = load_format(files)
        self.tokenizer = ServingTokenizer(files, bos=fmt.bos)
        # bos_keep would add a BOS to every chunk, and so to the prompt of full prefill as well.
        self.prefix_mode = "bos" if fmt.prefix_mode == "bos_keep" else fmt.prefix_mode
        self._before, self._behind = "", ""
        template = files.chat_template()
        if template is not None:
            chat = without_bos(from_chat_template(template, files), self.tokenizer.bos_text)
            # The template's text before and after the one user turn.
            self._before = chat.system.partition(INSTRUCTION)[0]
            self._behind = chat.question.partition(_QUESTION)[2]

    def count(self, text: str) -> int:
        return len(self.tokenizer.encode_text(text))

    def encode(self, sample: TextSample, chunk_tokens: int) -> Sample:
        tokenizer = self.tokenizer
        before, behind = (self._before, self._behind) if sample.chat else ("", "")
        bos = [] if tokenizer.bos is None else [tokenizer.bos]
        system = [*bos, *tokenizer.encode_template(before)]
        system += tokenizer.encode_text(sample.instruction)
        question = tokenizer.encode_text(sample.question)
        question += tokenizer.encode_template(behind)
        question += tokenizer.encode_text(sample.answer_prefix)
        context = tokenizer.encode_text(sample.context)
        documents = [
            tuple(context[i : i + chunk_tokens]) for i in range(0, len(context), chunk_tokens)
        ]
        return Sample(sample, tuple(system), tuple(documents), tuple(question))
