"""Exact-match accuracy on held-out names, with full attention and with block-masked documents."""

from __future__ import annotations

import random

import torch

from demo.decoder import Decoder
from demo.samples import Mix, Sampler

EVALUATION_SEED = 4242
CONTEXTS = 40


@torch.no_grad()
def accuracy(
    model: Decoder, sampler: Sampler, blocked: bool, documents: int = 3, contexts: int = CONTEXTS
) -> float:
    """Share of questions whose every answer token and EOS are the model's first choice.

    Teacher-forced, which for an exact match is the same as decoding greedily. The same contexts
    are drawn whatever `blocked` is, so the two figures are paired.
    """
    dtype = model.embed_tokens.weight.dtype
    rng = random.Random(EVALUATION_SEED)
    mix = Mix(documents, (5, 6), 10, block_mask_share=float(blocked), held_out=True)
    right = total = 0
    for _ in range(contexts // 10):
        batch = sampler.batch(rng, mix, 10, dtype)
        best = model.logits(model(batch.ids, batch.positions, batch.mask)[:, :-1]).argmax(-1)
        wrong = (best != batch.ids[:, 1:]) & (batch.weights[:, 1:] > 0)
        segments = batch.segments[:, 1:]
        for row in range(len(segments)):
            for question in segments[row][batch.first[row, 1:]].tolist():
                right += not bool(wrong[row][segments[row] == question].any())
                total += 1
    return right / total
