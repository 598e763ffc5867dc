"""The worker's public surface, for the start-up check of the command line, tuning and benchmarks.

What methods are written with is in `kvstitch.service.worker.methods.api`; this module is for
running them. Anything that is in neither `__all__` may change at any time. Requests and what the
engine returns are the types of `kvstitch.service.messages`.

    models    load_model, decoder_for, read_calibration, start_up_check
    engine    Engine, Address
    decoding  decode_step, BatchDecoder
    methods   the built-in methods, and others by their names
"""

from __future__ import annotations

from kvstitch.service.shared.model_fingerprint import CALIBRATION_FILE
from kvstitch.service.shared.model_fingerprint import fingerprint as model_fingerprint
from kvstitch.service.worker.engine.engine import Engine
from kvstitch.service.worker.forward.chunk_prefill import ChunkPrefill, ScratchKV
from kvstitch.service.worker.forward.decode import BatchDecoder, decode_step
from kvstitch.service.worker.forward.mixing import stored_states
from kvstitch.service.worker.forward.prefill import prefill
from kvstitch.service.worker.forward.selfcheck import check as start_up_check
from kvstitch.service.worker.forward.selfcheck import cpu_choices
from kvstitch.service.worker.kernels.device_kernels import why_missing
from kvstitch.service.worker.kv.pool import KVPool, SequenceKV
from kvstitch.service.worker.methods.bases.eviction import evict
from kvstitch.service.worker.methods.fusion.a3 import Method as A3
from kvstitch.service.worker.methods.fusion.cacheblend import Method as CacheBlend
from kvstitch.service.worker.methods.fusion.full_reuse import Method as FullReuse
from kvstitch.service.worker.methods.fusion.legolink import Method as LegoLink
from kvstitch.service.worker.methods.fusion.pie import Method as Pie
from kvstitch.service.worker.methods.fusion.question_scout import Method as QuestionScout
from kvstitch.service.worker.methods.fusion.vanilla import Method as Vanilla
from kvstitch.service.worker.methods.registry import make_eviction, make_fusion
from kvstitch.service.worker.model import gated_delta, mamba2
from kvstitch.service.worker.model.addressing import Address, Addressing
from kvstitch.service.worker.model.attention import attend_rows
from kvstitch.service.worker.model.decoder import DecoderModel
from kvstitch.service.worker.model.families import decoder_for
from kvstitch.service.worker.model.load import lacks_memory, no_memory, set_threads
from kvstitch.service.worker.model.load import load as load_model
from kvstitch.service.worker.model.mixer_state import FIRST_ROWS, MixerShape, State
from kvstitch.service.worker.model.model_facts import full_prefill as full_prefill_flops
from kvstitch.service.worker.model.model_facts import read_calibration
from kvstitch.service.worker.steps import run

__all__ = [
    "A3", "CALIBRATION_FILE", "FIRST_ROWS", "Address", "Addressing", "BatchDecoder", "CacheBlend",
    "ChunkPrefill", "DecoderModel", "Engine", "FullReuse", "KVPool", "LegoLink", "MixerShape",
    "Pie", "QuestionScout", "ScratchKV", "SequenceKV", "State", "Vanilla", "attend_rows",
    "cpu_choices", "decode_step", "decoder_for", "evict", "full_prefill_flops", "gated_delta",
    "lacks_memory", "load_model", "make_eviction", "make_fusion", "mamba2", "model_fingerprint",
    "no_memory", "prefill", "read_calibration", "run", "set_threads", "start_up_check",
    "stored_states", "why_missing",
]  # fmt: skip
