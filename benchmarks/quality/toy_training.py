"""Trains a small gated-DeltaNet hybrid and a small attention model on facts drawn anew each time.

A text is a run of facts, `key value`, and behind `ASK` stand keys of it with their values again, of
which every value is learnt: an answer can only come from the text.

Both models learn to look up only where what stands near comes first: all layers but the last see
two rows at the beginning, and more each time when 95 % are right, until nothing is hidden. In the
attention model that is a window, in the hybrid a decay of the states beside its own.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig, Qwen3Config, Qwen3ForCausalLM
from transformers.models.qwen3_5 import modeling_qwen3_5

from kvstitch.service.worker.api import gated_delta

KEYS, VALUES = 16, 8
SYSTEM, ASK = (1, 2, 3, 4), 5
KEY, VALUE = 8, 8 + KEYS
FACT, FACTS, QUESTIONS = 2, 14, 20
"""Tokens of a fact; facts of a text, and keys behind it that are asked for."""
TEXTS, RATE, MUON_RATE, WARM_UP, BLOCK = 28, 5e-3, 0.02, 20, 16
"""Texts of a step; rates at their highest, and steps until then; rows of a block in training."""
MEMORY, LEARNT = (2, 4, 8, 16, 32, 1 << 30), 0.95
"""Rows that layers see, one after the other, and the share of right values that leads on."""
SIZES = {
    "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 2, "num_key_value_heads": 2,
    "head_dim": 32, "vocab_size": VALUE + VALUES, "max_position_embeddings": 1024,
    "tie_word_embeddings": True, "eos_token_id": 0, "bos_token_id": None,
    "attn_implementation": "sdpa", "initializer_range": 0.1,
}  # fmt: skip


def hybrid() -> Any:
    """Three gated DeltaNets and one layer of attention."""
    config = Qwen3_5TextConfig(
        **SIZES, intermediate_size=64, linear_num_key_heads=2, linear_num_value_heads=2,
        linear_key_head_dim=32, linear_value_head_dim=32,
    )  # fmt: skip
    return Qwen3_5ForCausalLM(config)


def attention(*, narrow: bool = False) -> Any:
    """Four layers of attention, with MLPs that make the numbers of weights equal; narrow: with
    windows in all layers but the last."""
    kinds = ["sliding_attention" if narrow else "full_attention"] * 3 + ["full_attention"]
    config = Qwen3Config(
        **SIZES, intermediate_size=88, layer_types=kinds, use_sliding_window=narrow,
        sliding_window=MEMORY[0] if narrow else None,
    )  # fmt: skip
    return Qwen3ForCausalLM(config)


@dataclass(frozen=True)
class Facts:
    """Texts of facts: tokens `[texts, facts * FACT]`, and keys and values `[texts, facts]`."""

    tokens: Tensor
    keys: Tensor
    values: Tensor

    @classmethod
    def drawn(cls, source: np.random.Generator, texts: int) -> Facts:
        keys = KEY + source.random((texts, KEYS)).argsort(1)[:, :FACTS]
        values = VALUE + source.integers(0, VALUES, (texts, FACTS))
        both = np.stack([keys, values], 2).reshape(texts, -1)
        return cls(*(torch.from_numpy(x) for x in (both, keys, values)))


def batch(source: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Return texts with keys and values behind them, and the places before these values."""
    drawn = Facts.drawn(source, TEXTS)
    asked = torch.from_numpy(source.integers(0, FACTS, (TEXTS, QUESTIONS)))
    answered = torch.stack([x.gather(1, asked) for x in (drawn.keys, drawn.values)], 2)
    begin, ask = (torch.tensor(x).expand(TEXTS, -1) for x in (SYSTEM, [ASK]))
    ids = torch.cat([begin, drawn.tokens, ask, answered.flatten(1)], 1)
    return ids, ids.shape[1] - 2 * torch.arange(QUESTIONS, 0, -1)


@contextmanager
def served_rule(memory: list[int]) -> Iterator[None]:
    """Compute with the served rule in place of transformers', whose rows of a block take turns,
    and forget what stands more than `memory[-1]` rows before."""

    def rule(
        query: Tensor, key: Tensor, value: Tensor, *, g: Tensor, beta: Tensor, **others: Any
    ) -> tuple[Tensor, None]:
        texts, m, heads, width = query.shape

        def flat(x: Tensor) -> Tensor:
            return x.transpose(0, 1).flatten(1, 2).float()

        q, k = (gated_delta.normalised(flat(x)) for x in (query, key))
        state = q.new_zeros(texts * heads, width, value.shape[-1])
        decay = flat(g) - 6 / memory[-1]
        read, _ = gated_delta.run(q * width**-0.5, k, flat(value), decay, flat(beta), state)
        return read.reshape(m, texts, heads, -1).transpose(0, 1).to(query.dtype), None

    with (
        mock.patch.object(modeling_qwen3_5, "torch_chunk_gated_delta_rule", rule),
        mock.patch.object(gated_delta, "BLOCK", BLOCK),
    ):
        yield


def optimizers(model: Any) -> list[torch.optim.Optimizer]:
    """Muon for matrices and AdamW for the rest."""
    parts: tuple[list[Tensor], list[Tensor]] = [], []
    for name, weight in model.named_parameters():
        parts[weight.ndim == 2 and "embed" not in name].append(weight)
    adamw = torch.optim.AdamW(parts[0], lr=RATE, betas=(0.9, 0.98), weight_decay=0.0)
    return [adamw, torch.optim.Muon(parts[1], lr=MUON_RATE, weight_decay=0.0)]


def train(model: Any, seed: int, steps: int) -> dict[str, Any]:
    """Train a narrow model for so many steps; return what it took."""
    source, memory, lately, curve = np.random.default_rng(seed), [MEMORY[0]], 0.0, []
    every, started = optimizers(model.train()), time.process_time()
    with served_rule(memory):
        for step in range(steps):
            ids, before = batch(source)
            hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state[:, before]
            logits = model.lm_head(hidden)
            loss = F.cross_entropy(logits.flatten(0, 1), ids[:, before + 1].flatten())
            model.zero_grad()
            torch.autograd.backward(loss)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            # The rates rise, stay, and fall in the last fifth.
            rate = min((step + 1) / WARM_UP, 1, max(0.02, 5 * (1 - step / steps)))
            for optimizer, highest in zip(every, (RATE, MUON_RATE), strict=True):
                for group in optimizer.param_groups:
                    group["lr"] = rate * highest
                optimizer.step()
            right = (logits.argmax(-1) == ids[:, before + 1]).float().mean()
            lately = 0.9 * lately + 0.1 * float(right)
            widens = lately > LEARNT and len(memory) < len(MEMORY)
            if widens or step % 50 == 0:
                curve.append([step, memory[-1], float(loss.detach()), float(right)])
                print(*curve[-1], f"{time.process_time() - started:.0f} s", flush=True)
            if widens:
                memory.append(MEMORY[len(memory)])
                model.config.sliding_window, lately = memory[-1], 0.0
    seconds, weights = time.process_time() - started, sum(p.numel() for p in model.parameters())
    return {"weights": weights, "steps": steps, "seconds": seconds, "curve": curve,
            "memory": memory[-1]}  # fmt: skip
