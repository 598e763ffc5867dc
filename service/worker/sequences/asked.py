"""What a request asks for, as it was admitted: it never changes."""

from __future__ import annotations

import time
from array import array
from dataclasses import dataclass, field

import torch
from torch import Tensor

from service.messages.reports import GateNote
from service.messages.requests import Generate
from service.worker.methods.bases.eviction import EvictionMethod
from service.worker.methods.bases.fusion import FusionMethod, Reads
from service.worker.model.addressing import Address
from service.worker.prefix_cache import MIN_HISTORY


@dataclass(frozen=True)
class AllowedMethod:
    """The method that the correctness gate lets a request use."""

    fusion: FusionMethod
    note: GateNote | None  # what the answer says about it; None if it is the one that was asked for


@dataclass(frozen=True)
class Asked:
    """What was asked, as it was admitted."""

    request: Generate
    fusion: FusionMethod  # the method, before the planner chose its repair ratio
    eviction: EvictionMethod | None
    addresses: list[Address | None]  # of S, then of the documents; None for an empty segment
    end_ids: frozenset[int] = frozenset()
    auto_ratio: bool = False  # whether the planner chooses the repair ratio
    # the correctness gate's decision about the method; None if the method is not checked
    gated: AllowedMethod | None = None
    lora_fingerprint: str = ""
    # when the request arrived, by time.monotonic
    arrived: float = field(default_factory=time.monotonic)

    @property
    def prompt_tokens(self) -> int:
        request = self.request
        return len(request.system) + sum(self.document_tokens) + len(request.question)

    @property
    def document_tokens(self) -> list[int]:
        return [len(document.ids) for document in self.request.documents]

    @property
    def history(self) -> int:
        """Tokens of earlier turns that may be taken from the prompt before."""
        tokens = self.request.history
        if self.fusion.reads is not Reads.CHUNKS or self.eviction is not None:
            return 0
        return tokens if tokens >= MIN_HISTORY and self.request.documents else 0

    @property
    def repairs_history(self) -> bool:
        """Whether earlier turns are repaired like documents, and not computed."""
        return self.request.history_mode == "reuse"

    @property
    def as_stored(self) -> bool:
        """Whether chunks that are not stored are computed by themselves, not with the prompt."""
        return self.request.cold == "as_stored" and self.fusion.reads is not Reads.NOTHING


def prompt_ids(request: Generate) -> Tensor:
    """Return the token ids of a request's prompt `[n]` int64 in host memory."""
    ids = array("q", request.system)
    for document in request.documents:
        ids.extend(document.ids)
    ids.extend(request.question)
    return torch.tensor(ids, dtype=torch.long)
