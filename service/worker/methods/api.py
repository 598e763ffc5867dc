"""The stable names for methods that users write themselves: the base classes, the types of their
hooks' arguments and results, and the helper functions that the built-in methods use too."""

from kvstitch.service.errors import InvalidRequest
from kvstitch.service.shared.parameters import parameter
from kvstitch.service.worker.layout import Prefix, PromptLayout, Segment, union
from kvstitch.service.worker.methods.bases.dense import (
    DenseMethod,
    LayerLoop,
    RowWeights,
    Sight,
    TwoPassMethod,
)
from kvstitch.service.worker.methods.bases.eviction import EvictionMethod, PromptAttention
from kvstitch.service.worker.methods.bases.fusion import (
    FusionMethod,
    PartialMethod,
    Phase,
    PromptShape,
    Reads,
    dense_phases,
    floor_share,
    share_of,
)
from kvstitch.service.worker.methods.layer_view import (
    CachedSegment,
    ChunkExtra,
    ChunkLayer,
    LayerView,
    PrefillResult,
)
from kvstitch.service.worker.methods.scores import apportion, exact, max_pool, stable_topk
from kvstitch.service.worker.methods.stored_kv import Shift, squared_deviation
from kvstitch.service.worker.model.attention import attend_with_scores, attention_probabilities
from kvstitch.service.worker.model.model_facts import FlopCount, ModelFacts
from kvstitch.service.worker.steps import Steps

__all__ = [
    "CachedSegment", "ChunkExtra", "ChunkLayer", "DenseMethod", "EvictionMethod", "FlopCount",
    "FusionMethod", "InvalidRequest", "LayerLoop", "LayerView", "ModelFacts", "PartialMethod",
    "Phase", "PrefillResult", "Prefix", "PromptAttention", "PromptLayout", "PromptShape", "Reads",
    "RowWeights", "Segment", "Shift", "Sight", "Steps", "TwoPassMethod", "apportion",
    "attend_with_scores", "attention_probabilities", "dense_phases", "exact", "floor_share",
    "max_pool", "parameter", "share_of", "squared_deviation", "stable_topk", "union",
]  # fmt: skip
