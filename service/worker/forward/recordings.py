"""What the passes over a prompt ask where a device replays layers that were recorded before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from service.worker.methods.bases.dense import DenseMethod, Probes
from service.worker.steps import Steps


class Replayed(NamedTuple):
    """What a run of layers has left."""

    stop: int  # the first layer that was not computed
    x: Tensor | None  # hidden states before that layer; None behind the last layer
    logits: Tensor | None  # of the last row, behind the last layer
    rows_per_layer: Sequence[int]


class RecordedRuns(Protocol):
    """Computes layers of one prompt at which a method has nothing to do."""

    def may_follow(self, layer: int) -> bool:
        """Return whether a run may take over at the attention of a layer that was chosen at."""

    def run(
        self, first: int, rows: Tensor, *, x: Tensor | None = None, q: Tensor | None = None
    ) -> Steps[Replayed | None]:
        """Compute all quiet layers from `first` on, of rows with hidden states x, or with
        queries q if the layer is computed from its attention on; None: there is no recording."""


class Recordings(Protocol):
    """Recorded layers of a decoder; a `Job` that records in spare time what would be used."""

    @property
    def idle(self) -> bool: ...

    def advance(self) -> None: ...

    def fail_current(self, error: Exception) -> None: ...

    def of_prompt(
        self, loop: Any, method: DenseMethod, rows: Tensor, probes: Probes | None
    ) -> RecordedRuns:
        """Return what computes layers of a `PromptLoop` that begins with these rows."""

    def scores(self, attention_pass: Any) -> Steps[Tensor | None]:
        """`AttentionPass.run`; None if there is no recording for such a pass."""
