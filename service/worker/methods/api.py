"""The stable names for methods that users write themselves: the base classes, the types of their
hooks' arguments and results, and the helper functions that the built-in methods use too."""

from service.errors import InvalidRequest
from service.shared.parameters import parameter
from service.worker.layout import Prefix, PromptLayout, Segment, union
from service.worker.methods.bases.dense import (
    DenseMethod,
    LayerLoop,
    RowWeights,
    Sight,
    TwoPassMethod,
)
from service.worker.methods.bases.eviction import EvictionMethod, PromptAttention
from service.worker.methods.bases.fusion import (
    FusionMethod,
    PartialMethod,
    Phase,
    PromptShape,
    Reads,
    dense_phases,
    floor_share,
    share_of,
)
from service.worker.methods.layer_view import (
    CachedSegment,
    ChunkExtra,
    ChunkLayer,
    LayerView,
    PrefillResult,
)
from service.worker.methods.scores import apportion, exact, max_pool, stable_topk
from service.worker.methods.stored_kv import Shift, squared_deviation
from service.worker.model.attention import attend_with_scores, attention_probabilities
from service.worker.model.model_facts import FlopCount, ModelFacts
from service.worker.steps import Steps

__all__ = [
    "CachedSegment", "ChunkExtra", "ChunkLayer", "DenseMethod", "EvictionMethod", "FlopCount",
    "FusionMethod", "InvalidRequest", "LayerLoop", "LayerView", "ModelFacts", "PartialMethod",
    "Phase", "PrefillResult", "Prefix", "PromptAttention", "PromptLayout", "PromptShape", "Reads",
    "RowWeights", "Segment", "Shift", "Sight", "Steps", "TwoPassMethod", "apportion",
    "attend_with_scores", "attention_probabilities", "dense_phases", "exact", "floor_share",
    "max_pool", "parameter", "share_of", "squared_deviation", "stable_topk", "union",
]  # fmt: skip
