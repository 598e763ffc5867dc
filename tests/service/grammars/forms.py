"""Writes forms and answers them with noise, on the demo model's vocabulary."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from kvstitch.service.grammars.forms import Form, WrittenForm
from kvstitch.service.grammars.processes import FollowedGrammar, GrammarProcesses

TOKENIZER = Path("service/demo_model/tokenizer.json")
END = 2
CALM = 40  # tokens from which on noise prefers what brings an end nearer


class Forms:
    """The processes of forms, and a model that knows nothing."""

    def __init__(self, processes: GrammarProcesses) -> None:
        self.processes = processes
        self._tokenizer = Tokenizer.from_file(str(TOKENIZER))
        size = self._tokenizer.get_vocab_size()
        texts = [self._tokenizer.decode([token]) for token in range(size)]
        self._ending = np.array([any(char in text for char in '"}],') for text in texts])

    def write(self, schema: Any, *, strict: bool = False) -> WrittenForm:
        return self.processes.write(Form("json_schema", schema, strict=strict))

    def answer(self, grammar: str, seed: int, most: int = 400) -> str | None:
        """An answer of even noise; None if it has not ended after so many tokens."""
        source, ids = random.Random(seed), list[int]()
        followed = FollowedGrammar(self.processes, grammar)
        try:
            while len(ids) < most:
                step = followed.step(30.0)
                assert step is not None and not step.error, step
                if step.complete:
                    return self.text(ids)
                new = step.forced
                if not new:
                    words = np.frombuffer(step.allowed, np.uint8)
                    bits = np.unpackbits(words, bitorder="little")[: len(self._ending)]
                    allowed = np.nonzero(bits)[0]
                    ending = allowed[self._ending[allowed]]
                    if len(ids) > CALM and len(ending) and source.random() < 0.7:
                        allowed = ending
                    new = [int(source.choice(list(allowed)))]
                    if new == [END]:
                        return self.text(ids)
                ids += new
                followed.follow(new)
            return None
        finally:
            followed.close()

    def text(self, ids: list[int]) -> str:
        text: str = self._tokenizer.decode(ids, skip_special_tokens=False)
        return text

    def answers(self, grammar: str, count: int) -> list[Any]:
        """The JSON of so many answers that ended."""
        texts = (self.answer(grammar, seed) for seed in range(count))
        return [json.loads(text) for text in texts if text is not None]
