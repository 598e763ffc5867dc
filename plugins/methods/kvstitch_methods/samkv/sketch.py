"""The sketch that SamKV stores beside a chunk's KV, which tells which blocks a question will
need (specification.md §1.7, P1 to P6). It is computed while the chunk is precomputed, in
tiles of queries, so that a T × T attention matrix never exists in memory."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields

import torch
import torch.nn.functional as F
from torch import Tensor

from kvstitch.kvstore import BLOCK_TOKENS
from kvstitch.service.worker.methods.layer_view import ChunkExtra, ChunkLayer, LayerView
from kvstitch.service.worker.model.model_facts import PLAIN, AttentionRule

BLOCK = BLOCK_TOKENS
LOCAL_BLOCKS = 2


@dataclass(frozen=True)
class BlockGrid:
    """The blocks of one document: init (the first), local (the last two) and middle (the rest).

    0    64   128  192                      T
    ├init┤────┤────┤──── middle ──── ┤local ┤
    """

    tokens: int
    # tokens of a block. The store reads blocks of 64; other sizes are for measurements on models
    # with short contexts
    block: int = BLOCK

    @property
    def blocks(self) -> int:
        return -(-self.tokens // self.block)

    @property
    def fixed(self) -> list[int]:
        """Numbers of the blocks that are always kept (init and local), ascending."""
        return sorted({0, *range(max(0, self.blocks - LOCAL_BLOCKS), self.blocks)})

    @property
    def local(self) -> list[int]:
        return list(range(max(0, self.blocks - LOCAL_BLOCKS), self.blocks))

    @property
    def middle(self) -> list[int]:
        return list(range(1, self.blocks - LOCAL_BLOCKS))

    def span(self, block: int) -> range:
        """Return the token indices of a block; the document's last block may be shorter."""
        return range(block * self.block, min(self.tokens, (block + 1) * self.block))

    def indices(self, blocks: list[int]) -> list[int]:
        return [t for block in blocks for t in self.span(block)]


VERSION = 1  # of what is stored
# Tokens with fewer later queries are not scored: a mean over so few queries is too noisy.
MIN_LATER_QUERIES = 16
ATTENTION_FLOOR = 1e-8
TILE = 64
# Stored offset of a block that has no representative.
NONE = 255
# Decays of several layers are fitted together once there are this many values: many small
# operations cost more than one larger one.
FITTED_VALUES = 1 << 18


@dataclass(frozen=True)
class Sketch:
    """The sketch of one chunk with m blocks; fp32 where not said otherwise."""

    means: Tensor  # mean key before RoPE of each block `[layers, m, kv_heads, head_dim]`
    # mean key before RoPE of the init and local tokens `[layers, kv_heads, head_dim]`
    anchor: Tensor
    local_query: Tensor  # mean query before RoPE of the local tokens `[layers, heads, head_dim]`
    # the token of each block that receives most attention from later queries; -1 if no token of the
    # block is scored `[layers, m]` int32
    representative: Tensor
    mass: Tensor  # mean attention that the representative receives `[layers, m]`
    # decay of that attention with distance, y = c · x^-alpha: small if the token stays important,
    # +inf if there is no representative `[layers, m]`
    alpha: Tensor

    def tensors(self) -> dict[str, Tensor]:
        """Return the sketch as it is stored, on the host: vectors in int8 with one scale each,
        and of the block means only those of the middle blocks."""
        blocks = self.alpha.shape[1]
        out = {"mass": self.mass, "alpha": self.alpha}
        for name, vectors in (
            ("means", self.means[:, 1 : max(1, blocks - LOCAL_BLOCKS)]),
            ("anchor", self.anchor),
            ("local_query", self.local_query),
        ):
            scale = vectors.float().abs().amax((-2, -1), keepdim=True).clamp(min=1e-12) / 127
            out[name] = (vectors.float() / scale).round().to(torch.int8)
            out[name + ".scale"] = scale
        start = torch.arange(blocks, device=self.alpha.device) * BLOCK
        offset = torch.where(self.representative < 0, NONE, self.representative - start)
        out["offset"] = offset.to(torch.uint8)
        return {name: tensor.cpu() for name, tensor in out.items()}

    @classmethod
    def of(cls, stored: Mapping[str, Tensor]) -> Sketch:
        """Build a sketch from the result of `tensors`; means of init and local blocks are zero."""
        layers, blocks = stored["alpha"].shape
        decoded = {
            name: stored[name].float() * stored[name + ".scale"]
            for name in ("means", "anchor", "local_query")
        }
        means = torch.zeros(layers, blocks, *decoded["anchor"].shape[1:])
        means[:, 1 : 1 + decoded["means"].shape[1]] = decoded["means"]
        offset = stored["offset"].int()
        representative = torch.where(
            offset == NONE, -1, offset + torch.arange(blocks, dtype=torch.int32) * BLOCK
        )
        return cls(
            means,
            decoded["anchor"],
            decoded["local_query"],
            representative,
            stored["mass"],
            stored["alpha"],
        )

    def to(self, device: torch.device) -> Sketch:
        return Sketch(**{f.name: getattr(self, f.name).to(device) for f in fields(self)})


class SketchBuilder:
    """Builds a chunk's sketch while its layers are computed one after the other, behind the
    `first` prefix rows."""

    def __init__(self, first: int, block: int = BLOCK) -> None:
        self._first = first
        self._block = block
        self._layers: list[dict[str, Tensor]] = []
        self._columns: list[Tensor] = []
        self._alphas: list[Tensor] = []

    def add(self, view: LayerView | ChunkLayer) -> None:
        """Add the next layer of the chunk's full prefill."""
        first = self._first
        tokens = len(view.q) - first
        grid = BlockGrid(tokens, self._block)
        k = view.fresh_k[first:].float()
        q = view.q[first:]
        mass, norm = attention_mass(q, view.k, view.scale, view.rule)
        representative, top = representatives(mass, grid)
        columns = later_attention(q, view.k, norm, representative, view.scale, view.rule)
        local = grid.span(grid.local[0]).start
        init = min(grid.block, local)
        self._layers.append(
            {
                "means": block_means(k, grid),
                "anchor": torch.cat([k[:init], k[local:]]).mean(0),
                "local_query": view.fresh_q[first + local :].float().mean(0),
                "representative": representative.to(torch.int32),
                "mass": top,
            }
        )
        self._columns.append(columns)
        if columns.numel() * len(self._columns) >= FITTED_VALUES:
            self._fit()

    def _fit(self) -> None:
        """Fit the decays of the layers that were added since the last fit."""
        chosen = [part["representative"] for part in self._layers[-len(self._columns) :]]
        self._alphas.append(decays(torch.stack(self._columns), torch.stack(chosen)))
        self._columns = []

    def sketch(self) -> Sketch:
        """Return the sketch, after all layers have been added."""
        if self._columns:
            self._fit()
        names = [f.name for f in fields(Sketch) if f.name != "alpha"]
        parts = {name: torch.stack([part[name] for part in self._layers]) for name in names}
        return Sketch(**parts, alpha=torch.cat(self._alphas))

    def tensors(self) -> dict[str, Tensor]:
        """Return the sketch as it is stored."""
        return self.sketch().tensors()


EXTRA = ChunkExtra("samkv", VERSION, lambda: SketchBuilder(0))
"""A sketch as what is stored beside every chunk."""


def block_means(k: Tensor, grid: BlockGrid) -> Tensor:
    """Return mean of each block's keys, `[T, kv_heads, head_dim]` → `[m, kv_heads, head_dim]`."""
    missing = grid.blocks * grid.block - grid.tokens
    if not missing:
        return k.view(grid.blocks, grid.block, *k.shape[1:]).mean(1)
    sums = F.pad(k, (0, 0, 0, 0, 0, missing)).view(grid.blocks, grid.block, *k.shape[1:]).sum(1)
    counts = torch.full((grid.blocks, 1, 1), float(grid.block), device=k.device)
    counts[-1] -= missing
    return sums / counts


def attention_mass(
    q: Tensor, k: Tensor, scale: float, rule: AttentionRule = PLAIN
) -> tuple[Tensor, Tensor]:
    """Return the mean attention that each token receives from later queries."""
    tokens, heads, d = q.shape
    kv_heads, n, _ = k.shape
    first = n - tokens
    sums = torch.zeros(tokens, device=q.device)
    norm = torch.empty(heads, tokens, device=q.device)
    keys = k.float()
    for a in range(0, tokens, TILE):
        b = min(a + TILE, tokens)
        grouped = q[a:b].float().view(b - a, kv_heads, heads // kv_heads, d).permute(1, 2, 0, 3)
        scores = rule.capped(torch.einsum("hgmd,hnd->hgmn", grouped * scale, keys[:, : first + b]))
        unseen = torch.ones(b - a, b - a, dtype=torch.bool, device=q.device)
        # The mask is for the tile's own keys only: all keys before them are visible.
        scores[..., first + a :].masked_fill_(unseen.triu(1), -math.inf)
        if rule.window is not None:
            at = torch.arange(first + b, device=q.device)
            scores.masked_fill_(at <= at[first + a :, None] - rule.window, -math.inf)
        # Softmax and normaliser share one exponential, computed in place.
        highest = scores.amax(-1, keepdim=True)
        total = scores.sub_(highest).exp_().sum(-1, keepdim=True)
        if rule.sinks is not None:
            total += (rule.sinks.view(kv_heads, -1, 1, 1) - highest).exp()
        norm[:, a:b] = (highest + total.log()).view(heads, b - a)
        weights = scores.mul_(1 / total).sum((0, 1))[:, first:]
        weights[:, a:].masked_fill_(unseen.triu(), 0)  # a token's own query does not count either
        sums[:b] += weights.sum(0)
    later = torch.arange(tokens - 1, -1, -1, device=q.device)
    mass = sums / (heads * later.clamp(min=1))
    return mass.masked_fill(later < MIN_LATER_QUERIES, math.nan), norm


def representatives(mass: Tensor, grid: BlockGrid) -> tuple[Tensor, Tensor]:
    """Return the representative of each block, the scored token that receives most attention:
    indices `[m]` int64, -1 where no token is scored; and their mass `[m]`. `mass` `[T]` is NaN
    where a token is not scored."""
    missing = grid.blocks * grid.block - grid.tokens
    scored = mass.nan_to_num(-math.inf)
    if missing:
        scored = F.pad(scored, (0, missing), value=-math.inf)
    top, at = scored.view(grid.blocks, grid.block).max(1)
    there = top > -math.inf
    chosen = at + torch.arange(grid.blocks, device=mass.device) * grid.block
    return chosen.where(there, -1), top.where(there, 0.0)


def later_attention(
    q: Tensor,
    k: Tensor,
    norm: Tensor,
    representative: Tensor,
    scale: float,
    rule: AttentionRule = PLAIN,
) -> Tensor:
    """Return attention of every query to each block's representative, mean over heads, `[T, m]`
    fp32."""
    tokens, heads, d = q.shape
    kv_heads, n, _ = k.shape
    at = representative.clamp(min=0) + n - tokens
    keys = k[:, at].float() * scale
    # Every query is multiplied with the keys of all KV heads, and the diagonal picks its own:
    # rearranging the queries by KV head first would take ten times as long.
    scores = (q.reshape(-1, d).float() @ keys.view(-1, d).t()).view(
        tokens, kv_heads, heads // kv_heads, kv_heads, len(at)
    )
    own = rule.capped(scores.diagonal(dim1=1, dim2=3))  # [tokens, group, m, kv_heads]
    normaliser = norm.view(kv_heads, -1, 1, tokens).permute(3, 1, 2, 0)
    paid = (own - normaliser).exp_().mean((1, 3))
    if rule.window is not None:
        behind = torch.arange(tokens, device=q.device)[:, None] - representative
        paid.masked_fill_(behind >= rule.window, 0)
    return paid


def decays(columns: Tensor, representative: Tensor) -> Tensor:
    """Return alpha, how fast attention decays: least squares of log y = c - alpha · log x."""
    index = torch.arange(columns.shape[1], device=columns.device)
    distance = index[:, None] - representative[:, None]
    later = distance >= 1
    x = distance.clamp(min=1).double().log()
    y = columns.clamp(min=ATTENTION_FLOOR).double().log()
    count = later.sum(1, keepdim=True)
    x = (x - (x * later).sum(1, keepdim=True) / count) * later
    y = (y - (y * later).sum(1, keepdim=True) / count) * later
    alpha = -(x * y).sum(1) / x.square().sum(1)
    return alpha.float().masked_fill(representative < 0, math.inf)
