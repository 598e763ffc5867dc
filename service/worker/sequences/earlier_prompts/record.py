"""What is stored beside the KV of a prompt, to find it again after a restart.

The KV is a chunk like any other, in the codec raw, except that its keys are stored after RoPE: a
prompt that continues it has all of its tokens at the same positions, to the bit.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from service.worker.model.addressing import Address
from service.worker.sequences.kept_prompt import EarlierPrompt

NAME, VERSION = "prompt", 1
"""Of the extra tensors that hold a record."""


@dataclass(frozen=True, eq=False)
class StoredPrompt(EarlierPrompt):
    """An earlier prompt whose KV is on disk.

    Attributes:
        address: of its KV.
    """

    address: Address


def record(prompt: EarlierPrompt, logits: Tensor) -> dict[str, Tensor]:
    """The extra tensors of a prompt.

    Args:
        logits: of the first answer token `[vocabulary]`.
    """
    facts = prompt.facts
    tokens = facts.pop("tokens")
    text = torch.frombuffer(bytearray(json.dumps(facts).encode()), dtype=torch.uint8)
    return {"facts": text, "tokens": tokens, "logits": logits}


def earlier_prompt(tensors: Mapping[str, Tensor]) -> EarlierPrompt:
    """The prompt that a record describes."""
    facts = json.loads(bytes(tensors["facts"].tolist()))
    return EarlierPrompt(tokens=tensors["tokens"].clone(), **facts)
