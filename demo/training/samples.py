"""Rows as tensors, and the masks of full prefill and of stitched chunks."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from enum import Enum
from functools import cached_property

import torch
from torch import Tensor

from demo.language.vocabulary import PAD_ID
from demo.training.rows import FIRST_QUESTION, Row

PADDING = -1
"""Segment id of padding."""
ALIGNMENT = 8


class View(Enum):
    """What a chunk of the context sees; questions always see the whole context."""

    FULL = "full"
    """Everything before it: full prefill."""
    SYSTEM = "pie behind the system prompt"
    """The system prompt and itself: a chunk that was precomputed behind the system prompt."""
    BARE = "pie"
    """Only itself: a chunk that was precomputed alone."""


@dataclass(frozen=True)
class Batch:
    """The rows of one pass; tensors are `[rows, tokens]` unless it says otherwise.

    Attributes:
        tasks: Task of each question of each row.
        hints: `[hints, 4]`: row, depth, place, token.
        links: `[links, 4]`: row, layer, place, place that it should attend to.
    """

    tasks: list[list[str]]
    ids: Tensor
    positions: Tensor
    segments: Tensor
    weights: Tensor
    first: Tensor
    hints: Tensor
    links: Tensor
    view: View = View.FULL

    @cached_property
    def mask(self) -> Tensor:
        """Additive mask `[rows, 1, tokens, tokens]`, built on the device of the batch."""
        return attention_mask(self.segments, self.view)

    def to(self, device: torch.device) -> Batch:
        tensors = {
            each.name: getattr(self, each.name).to(device, non_blocking=True)
            for each in fields(self)
            if isinstance(getattr(self, each.name), Tensor)
        }
        return replace(self, **tensors)


def collate(rows: list[Row], view: View = View.FULL) -> Batch:
    """Pads rows to the length of the longest."""
    length = padded_length(max(len(row.ids) for row in rows))

    def padded(values: list[list[int]], fill: int) -> Tensor:
        return torch.tensor([v + [fill] * (length - len(v)) for v in values])

    weights = [row.weights + [0.0] * (length - len(row.ids)) for row in rows]
    return Batch(
        tasks=[row.tasks for row in rows],
        ids=padded([row.ids for row in rows], PAD_ID),
        positions=padded([row.positions for row in rows], 0),
        segments=padded([row.segments for row in rows], PADDING),
        weights=torch.tensor(weights, dtype=torch.float32),
        first=padded([[int(f) for f in row.first] for row in rows], 0).bool(),
        hints=_stack([row.hints for row in rows]),
        links=_stack([row.links for row in rows]),
        view=view,
    )


def padded_length(tokens: int) -> int:
    """Rounds up, because fused attention kernels need masks with aligned rows."""
    return -(-tokens // ALIGNMENT) * ALIGNMENT


def _stack(lists: list[list[tuple[int, int, int]]]) -> Tensor:
    """`[entries, 4]`: the index of its row, and then the entry."""
    entries = [(row, *entry) for row, found in enumerate(lists) for entry in found]
    return torch.tensor(entries, dtype=torch.long).view(-1, 4)


def attention_mask(segments: Tensor, view: View) -> Tensor:
    """Additive mask `[rows, 1, tokens, tokens]` from segment ids `[rows, tokens]`."""
    length = segments.shape[1]
    query, key = segments[:, :, None], segments[:, None, :]
    own = key == query
    asks = query >= FIRST_QUESTION
    if view is View.FULL:
        visible = own | (key < FIRST_QUESTION)
    elif view is View.SYSTEM:
        visible = own | (key == 0) | (asks & (key < FIRST_QUESTION))
    else:
        visible = own | (asks & (key < FIRST_QUESTION))
    visible &= torch.ones(length, length, dtype=torch.bool, device=segments.device).tril()
    # Padding needs no mask of its own: it comes last, and causality hides it from real tokens.
    hidden = torch.zeros(visible.shape, device=segments.device)
    return hidden.masked_fill_(~visible, -1e9)[:, None]
