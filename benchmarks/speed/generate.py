"""transformers' own loops with an unmodified model.

`generate` after a filled cache, and continuous batching (`generate_batch`) of whole prompts.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import ContinuousBatchingConfig, DynamicCache, GenerationConfig

PAGE = 64  # KV rows of a page


def greedy(tokens: int) -> Any:
    """A greedy configuration without end token, so that all answers are equally long."""
    return GenerationConfig(
        do_sample=False, max_new_tokens=tokens, min_new_tokens=tokens, pad_token_id=0
    )


class Generate:
    """`generate` for one sequence, with random KV in its cache like ours."""

    def __init__(self, model: Any, context: int) -> None:
        self._model = model
        self._context = context
        self._cache: Any = None

    def fill(self) -> None:
        """Makes a new cache, because `generate` leaves its tokens in the one it gets."""
        config = self._model.config
        dtype, heads = self._model.dtype, config.num_key_value_heads
        head_dim = config.hidden_size // config.num_attention_heads
        self._cache = DynamicCache(config=config)
        for layer in range(config.num_hidden_layers):
            k, v = torch.zeros(2, 1, heads, self._context, head_dim, dtype=dtype)
            self._cache.update(k, v, layer)

    def decode(self, steps: int) -> None:
        ids = torch.ones(1, self._context + 1, dtype=torch.long)
        out = self._model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            past_key_values=self._cache,
            generation_config=greedy(steps),
        )
        assert out.shape[1] == self._context + 1 + steps


def generate_batch(model: Any, prompts: list[list[int]], tokens: int, batch_tokens: int) -> None:
    """Answers all prompts by continuous batching.

    There are as many pages as the prompts need. By default it would take most of the machine's
    memory, and clear it first.

    Args:
        model: the transformers model.
        prompts: token ids.
        tokens: of each answer.
        batch_tokens: largest number of rows of one forward.

    Raises:
        RuntimeError: a prompt failed.
    """
    longest = max(map(len, prompts)) + tokens
    pages = len(prompts) * (-(-longest // PAGE) + 1)
    config = ContinuousBatchingConfig(
        page_size=PAGE, num_blocks=pages, max_batch_tokens=batch_tokens
    )
    out = model.generate_batch(
        inputs=prompts,
        generation_config=greedy(tokens),
        continuous_batching_config=config,
        warmup=False,
    )
    for name, result in out.items():
        if result.error is not None or len(result.generated_tokens) != tokens:
            raise RuntimeError(f"generate_batch: {name}: {result.error or 'too few tokens'}")
    if len(out) != len(prompts):
        raise RuntimeError(f"generate_batch answered {len(out)} of {len(prompts)} prompts")
