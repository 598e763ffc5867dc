"""The worker's public surface, for the start-up check of the command line, tuning and benchmarks.

What methods are written with is in `service.worker.methods.api`; this module is for running them.
Anything that is in neither `__all__` may change at any time. Requests and what the engine returns
are the types of `service.messages`.

    models    load_model, decoder_for, read_calibration, start_up_check
    engine    Engine, Address
    decoding  decode_step, BatchDecoder
    methods   the built-in methods, the registry
"""

from __future__ import annotations

from service.shared.model_fingerprint import CALIBRATION_FILE
from service.shared.model_fingerprint import fingerprint as model_fingerprint
from service.worker.engine.engine import Engine
from service.worker.forward.chunk_prefill import ChunkPrefill, ScratchKV
from service.worker.forward.decode import BatchDecoder, decode_step, kernel_weights
from service.worker.forward.kv_placement import write_rows
from service.worker.forward.prefill import Capture
from service.worker.forward.selfcheck import check as start_up_check
from service.worker.kv.pool import KVPool, SequenceKV
from service.worker.methods.bases.eviction import evict
from service.worker.methods.fusion.a3 import Method as A3
from service.worker.methods.fusion.cacheblend import Method as CacheBlend
from service.worker.methods.fusion.full_reuse import Method as FullReuse
from service.worker.methods.fusion.legolink import Method as LegoLink
from service.worker.methods.fusion.pie import Method as Pie
from service.worker.methods.fusion.question_scout import Method as QuestionScout
from service.worker.methods.fusion.vanilla import Method as Vanilla
from service.worker.methods.registry import (
    add_folder,
    eviction_methods,
    fusion_methods,
    make_eviction,
    make_fusion,
)
from service.worker.model.addressing import Address, Addressing
from service.worker.model.attention import attend_rows, weighted_values
from service.worker.model.decoder import DecoderModel
from service.worker.model.families import decoder_for
from service.worker.model.load import default_pool_tokens, lacks_memory, no_memory, set_threads
from service.worker.model.load import load as load_model
from service.worker.model.model_facts import full_prefill as full_prefill_flops
from service.worker.model.model_facts import read_calibration
from service.worker.sequences.reuse import HistoryKV

__all__ = [
    "A3", "CALIBRATION_FILE", "Address", "Addressing", "BatchDecoder",
    "CacheBlend", "Capture", "ChunkPrefill", "DecoderModel", "Engine", "FullReuse", "HistoryKV",
    "KVPool", "LegoLink", "Pie", "QuestionScout", "ScratchKV", "SequenceKV", "Vanilla",
    "add_folder", "attend_rows", "decode_step", "decoder_for", "default_pool_tokens",
    "evict", "eviction_methods", "full_prefill_flops", "fusion_methods", "kernel_weights",
    "lacks_memory", "load_model", "make_eviction", "make_fusion", "model_fingerprint", "no_memory",
    "read_calibration", "set_threads", "start_up_check", "weighted_values", "write_rows",
]  # fmt: skip
