"""Multi-InfLLM, the comparison of SamKV's paper: InfLLM over the documents' concatenated caches.

S, the first document tokens (init) and a window before the row are always seen; of the blocks in
between, every chunk of the question *and every decode step* picks those anew that its mean query
scores highest by a few representative tokens. Nothing is recomputed (docs/specification.md §1.8;
InfLLM, Xiao et al. 2024).

The service cannot run it: its decode attends to a cache that is fixed when the prompt is in place,
here every layer would attend to another set of blocks at every step, keys of blocks unrotated and
the query turned by a constant distance. So it is a measured comparator, with its own decode loop
over the same decoder, that holds everything and only attends to part. What docs/specification.md
leaves open is decided as in the test suite's reference: S stays beside init, blocks are a grid
across documents, one can be picked once it lies outside the window of the chunk's first row, and
tokens that no block can bring back (the grid's rest, the question, the answer so far) stay visible.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

from service.worker.api import DecoderModel, weighted_values
from service.worker.methods.api import (
    CachedSegment,
    LayerView,
    PromptLayout,
    attention_probabilities,
    stable_topk,
)
from tuning.single_prompts import prefill_ids


@dataclass(frozen=True)
class MultiInfLLM:
    """Tokens, but for `topk` (blocks; default: what is left of `ratio` of the documents' tokens,
    at least one) and `representatives` (tokens of a block that stand for it). `chunk`: question
    tokens that pick together."""

    block: int = 64
    init: int = 64
    local: int = 128
    topk: int | None = None
    ratio: float = 0.15
    representatives: int = 4
    chunk: int = 512

    def blocks_for(self, document_tokens: int) -> int:
        """Blocks picked at a time; halves go to the even number."""
        if self.topk is not None:
            return self.topk
        budget = Fraction(str(self.ratio)) * document_tokens - self.init - self.local
        return max(1, round(budget / self.block))


def relevance(
    decoder: DecoderModel, ids: Sequence[int], prefix: Sequence[int], local: int
) -> list[Tensor]:
    """Per layer `[heads, T]` fp32: attention that each token of a segment, precomputed behind
    `prefix`, gets from the `local` queries after it. Makes a T × T matrix per layer."""
    first, found = len(prefix), []

    def capture(view: LayerView) -> None:
        weights = attention_probabilities(
            view.q[first:], view.k, view.rows[first:], view.scale, rule=view.rule
        )
        at = torch.arange(len(ids), device=weights.device)
        distance = at[:, None] - at
        near = (distance > 0) & (distance <= local)
        found.append((weights[:, :, first:] * near).sum(1))

    prefill_ids(decoder, [*prefix, *ids], capture=capture)
    return found


class Context:
    """One prompt's S and documents, then whatever `extend` is given.

    `segments[i]`, `scores[i]`: stored KV and relevance of S and every document; None where empty.
    """

    def __init__(
        self,
        decoder: DecoderModel,
        layout: PromptLayout,
        segments: Sequence[CachedSegment | None],
        scores: Sequence[Sequence[Tensor] | None],
        method: MultiInfLLM,
    ) -> None:
        self._decoder, self._method = decoder, method
        self._system, self._end = layout.segments[0].tokens, layout.question_start
        self._init = min(self._end, self._system + method.init)
        starts = range(self._init, self._end, method.block)
        self.blocks = [range(a, min(a + method.block, self._end)) for a in starts]
        self.topk = method.blocks_for(self._end - self._system)
        self.candidates: list[list[int]] = []  # [chunk]
        self.picked: list[list[list[int]]] = []  # [chunk][layer], ascending
        self._near: list[Tensor] = []  # [layer] K at its own position, [tokens, kv_heads, d]
        self._far: list[Tensor] = []  # [layer] K at position 0
        self._v: list[Tensor] = []
        self._keys: list[Tensor] = []  # [layer] of blocks, [blocks, heads, d]
        present = [s for s in segments if s is not None]
        relevant = [s for s in scores if s is not None]
        for layer in range(decoder.layers):
            stored = [segment.layer(layer) for segment in present]
            k, v = self._nothing(), self._nothing()
            if stored:
                k, v = (torch.cat(part).to(decoder.device) for part in zip(*stored, strict=True))
                self._keys.append(self._block_keys(k, torch.cat([s[layer] for s in relevant], 1)))
            self._near.append(
                decoder.ropes[0].rotate(k, torch.arange(len(k), device=decoder.device))
            )
            self._far.append(self._unturned(k))
            self._v.append(v)

    @property
    def tokens(self) -> int:
        return len(self._v[0])

    @property
    def kept(self) -> float:
        """Share of the documents' tokens that the last row of the last chunk saw, mean over
        layers."""
        documents = slice(self._system, self._end)
        row = torch.tensor([self.tokens - 1], device=self._decoder.device)
        near, far = zip(*(self._visible(row, layer) for layer in range(len(self._v))), strict=True)
        seen = (torch.cat(near) | torch.cat(far))[:, documents]
        return float(seen.float().mean()) if seen.numel() else 0.0

    def extend(self, ids: Sequence[int]) -> Tensor:
        """Logits `[vocabulary]` after the last of `ids`, which pick by chunks."""
        step = self._method.chunk
        for start in range(0, len(ids), step):
            logits = self._run_chunk(ids[start : start + step])
        return logits

    def _run_chunk(self, ids: Sequence[int]) -> Tensor:
        decoder, local = self._decoder, self._method.local
        row = self.tokens
        rows = torch.arange(row, row + len(ids), device=decoder.device)
        among = [i for i, block in enumerate(self.blocks) if row - block[-1] >= local]
        self.candidates.append(among)
        self.picked.append([])
        x = decoder.embed(torch.tensor(ids, device=decoder.device))
        far_rows = torch.full_like(rows, local)
        for layer in range(decoder.layers):
            q, k, v = decoder.qkv(layer, x)
            self.picked[-1].append(self._pick(layer, q, among))
            self._near[layer] = torch.cat([self._near[layer], decoder.ropes[0].rotate(k, rows)])
            self._far[layer] = torch.cat([self._far[layer], self._unturned(k)])
            self._v[layer] = torch.cat([self._v[layer], v])
            near, far = self._visible(rows, layer)
            scores = self._scores(decoder.ropes[0].rotate(q, rows), self._near[layer])
            distant = self._scores(decoder.ropes[0].rotate(q, far_rows), self._far[layer])
            scores = scores.masked_fill(~near, float("-inf"))
            scores = torch.where(far, distant, scores)
            v_heads = self._v[layer].transpose(0, 1)
            x = decoder.finish(layer, x, weighted_values(scores.softmax(-1), v_heads))
        return decoder.logits(x[-1:])[0]

    def _pick(self, layer: int, q: Tensor, among: list[int]) -> list[int]:
        """The best of the blocks `among` for the mean query of `q` `[m, heads, d]`."""
        if not among:
            return []
        mean = q.float().mean(0, keepdim=True)
        place = torch.tensor([self._method.local], device=q.device)
        turned = self._decoder.ropes[0].rotate(mean, place)[0]
        scores = (self._keys[layer][among] * turned).sum((1, 2))
        return [among[i] for i in stable_topk(scores, self.topk).tolist()]

    def _visible(self, rows: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """Which of all keys each row meets at its own distance, and which at the constant one:
        `[m, tokens]` each, never both."""
        kept = torch.ones(len(self._v[layer]), dtype=torch.bool, device=rows.device)
        for i in self.candidates[-1] if self.candidates else []:
            if i not in self.picked[-1][layer]:
                kept[self.blocks[i].start : self.blocks[i].stop] = False
        distance = rows[:, None] - torch.arange(len(kept), device=rows.device)
        near = (distance >= 0) & (distance < self._method.local)
        return near, (distance >= self._method.local) & kept

    def _scores(self, q: Tensor, k: Tensor) -> Tensor:
        """Scaled products in fp32 `[heads, m, n]`."""
        m, heads, d = q.shape
        grouped = q.float().view(m, k.shape[1], -1, d)
        out = torch.einsum("mgjd,ngd->gjmn", grouped, k.float()) * self._decoder.scale
        return out.reshape(heads, m, len(k))

    def _block_keys(self, k: Tensor, scores: Tensor) -> Tensor:
        """`[blocks, heads, d]` fp32: per query head the mean key before RoPE of a block's most
        relevant tokens. k `[context, kv_heads, d]`, scores `[heads, context]`."""
        heads = self._decoder.heads
        k = k.float().repeat_interleave(heads // k.shape[1], dim=1).transpose(0, 1)
        out = [torch.empty(0, heads, k.shape[-1], device=k.device)]
        for block in self.blocks:
            span = slice(block.start, block.stop)
            best = stable_topk(scores[:, span], self._method.representatives)
            chosen = k[:, span].gather(1, best[:, :, None].expand(-1, -1, k.shape[-1]))
            out.append(chosen.mean(1, keepdim=True).transpose(0, 1))
        return torch.cat(out)

    def _unturned(self, k: Tensor) -> Tensor:
        """At position 0: as before RoPE up to YaRN's factor, which rotated keys carry."""
        return self._decoder.ropes[0].rotate(
            k, torch.zeros(len(k), dtype=torch.long, device=k.device)
        )

    def _nothing(self) -> Tensor:
        decoder = self._decoder
        shape = (0, decoder.kv_heads, decoder.head_dim)
        return torch.empty(shape, dtype=decoder.dtype, device=decoder.device)
