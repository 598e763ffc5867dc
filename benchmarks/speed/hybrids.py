"""A hybrid's first token from stored states and KV beside full prefill, what its chunks take, and
how exactly states are composed.

    python -m benchmarks.speed.hybrids [--shape qwen3.5-0.8b] [--threads 1] [--only time]

Weights are random, bfloat16; a prompt is S, four documents and a question, 2,048 tokens. Full
prefill, PIE, LegoLink of two first rows a document and composing 16 documents' states take turns,
in the processor's seconds if one thread computes. The error is that of composed states beside
rows in float64, over the largest entry.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import (
    GraniteMoeHybridConfig,
    GraniteMoeHybridForCausalLM,
    Qwen3_5ForCausalLM,
    Qwen3_5TextConfig,
)

from benchmarks.common.shapes import random_model
from kvstitch.kvstore import ChunkSpec, EncodedChunk, chunk_file_bytes
from kvstitch.service.worker.api import (
    Addressing,
    ChunkPrefill,
    DecoderModel,
    LegoLink,
    MixerShape,
    Pie,
    ScratchKV,
    State,
    Vanilla,
    decoder_for,
    gated_delta,
    mamba2,
    prefill,
    run,
    stored_states,
)
from kvstitch.service.worker.methods.api import Prefix, PromptLayout
from kvstitch_tune.records import describe

OUT = Path("benchmarks/results/hybrids.json")
SYSTEM, DOCUMENT, DOCUMENTS, QUESTION = 32, 496, 4, 32
# hidden, layers, attention heads, KV heads, intermediate, value heads of mixers (key heads: 16)
SHAPES = {
    "qwen3.5-0.8b": (1024, 24, 8, 2, 3584, 16),
    "qwen3.5-2b": (2048, 24, 8, 2, 6144, 16),
    "qwen3.5-4b": (2560, 32, 16, 4, 9216, 32),
    "qwen3.5-27b": (5120, 64, 24, 4, 17408, 48),
    "tiny": (64, 8, 4, 2, 96, 16),
}
# hidden, layers with attention, mixers before each and behind the last, attention heads, KV heads,
# intermediate, heads of mixers, their width; states have 128 rows. 4-tiny has experts, which
# chunks do not hold: its time is not measured.
GRANITES = {
    "granite-4-350m": (768, 4, (10, 2, 3, 9, 4), 12, 4, 2048, 48, 32),
    "granite-4-tiny": (1536, 4, (5, 9, 9, 9, 4), 12, 4, 1024, 48, 64),
}
LENGTHS = (512, 2048, 8192)


def random_hybrid(name: str, seed: int = 0, vocabulary: int = 32768) -> DecoderModel:
    """A model with a smaller vocabulary, of which only the last row's logits are computed."""
    if name in GRANITES:
        hidden, _, mixers, heads, kv_heads, intermediate, inner, width = GRANITES[name]
        kinds = [["linear_attention"] * count + ["full_attention"] for count in mixers]
        layer_types = [kind for part in kinds for kind in part][:-1]
        granite = GraniteMoeHybridConfig(
            vocab_size=vocabulary, hidden_size=hidden, num_hidden_layers=len(layer_types),
            layer_types=layer_types, num_attention_heads=heads, num_key_value_heads=kv_heads,
            shared_intermediate_size=intermediate, num_local_experts=0, mamba_n_heads=inner,
            mamba_d_head=width, mamba_d_state=128, mamba_expand=inner * width // hidden,
            max_position_embeddings=8192, tie_word_embeddings=True, attn_implementation="sdpa",
        )  # fmt: skip
        return decoder_for(random_model(GraniteMoeHybridForCausalLM, granite, torch.bfloat16, seed))
    hidden, layers, heads, kv_heads, intermediate, value_heads = SHAPES[name]
    config = Qwen3_5TextConfig(
        vocab_size=vocabulary, hidden_size=hidden, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=kv_heads, intermediate_size=intermediate,
        linear_num_value_heads=value_heads, linear_num_key_heads=16, tie_word_embeddings=True,
        attn_implementation="sdpa",
    )  # fmt: skip
    return decoder_for(random_model(Qwen3_5ForCausalLM, config, torch.bfloat16, seed))


@torch.inference_mode()
def first_token(decoder: DecoderModel, rounds: int, seed: int) -> dict[str, Any]:
    """Seconds of full prefill, of PIE, of LegoLink, and of composing 16 documents' states."""
    source = torch.Generator().manual_seed(seed)
    lengths = [SYSTEM, *[DOCUMENT] * DOCUMENTS, QUESTION]
    ids = torch.randint(0, decoder.vocabulary, (sum(lengths),), generator=source).tolist()
    ends = torch.tensor(lengths).cumsum(0).tolist()
    system, *documents, question = [
        ids[end - size : end] for size, end in zip(lengths, ends, strict=True)
    ]
    addressing = Addressing(decoder, fingerprint="f", codec="raw")
    chunks = ChunkPrefill(decoder)
    asked = [addressing.system(system, ""), *(
        addressing.document(each, "system", system, "") for each in documents
    )]  # fmt: skip
    stored = [run(chunks.compute(address)).chunk for address in asked]
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    methods = {"vanilla": Vanilla(), "pie": Pie(), "legolink": LegoLink(first=2, last=0)}
    samples: dict[str, list[float]] = {name: [] for name in (*methods, "compose 16")}
    for _ in range(rounds):
        for name in samples:
            started = clock()
            if name == "compose 16":
                compose(decoder, stored[1:] * 4)
            else:
                cached = name != "vanilla"
                layout = PromptLayout.of(
                    system, documents, question, uncached=[not cached] * (1 + DOCUMENTS),
                    prefixes=[Prefix(system)] * DOCUMENTS,
                )  # fmt: skip
                parts = [*stored] if cached else [None] * len(stored)
                scratch = ScratchKV(decoder, layout.tokens)
                run(prefill(decoder, layout, parts, methods[name], scratch))
            samples[name].append(clock() - started)
    middle = {name: statistics.median(seconds) for name, seconds in samples.items()}
    return {
        "tokens": len(ids), "samples": samples, "median": middle,
        "over vanilla": {name: took / middle["vanilla"] for name, took in middle.items()},
    }  # fmt: skip


def compose(decoder: DecoderModel, documents: list[EncodedChunk]) -> None:
    for layer in range(len(decoder.mixers)):
        read = [stored_states(decoder, each, layer, each.spec.tokens) for each in documents]
        for number in range(len(decoder.mixers[layer])):
            state: State | None = None
            for each in read:
                state = each[number].behind(state)


def chunk_bytes(name: str, tokens: int, codec: str) -> tuple[int, int]:
    """Bytes of a chunk's KV with its header, and of its states."""
    if name in GRANITES:
        hidden, layers, mixers, heads, kv_heads, _, inner, width = GRANITES[name]
        channels, most = inner * width + 2 * 128, -(-sum(mixers) // layers)
        most = max(most, mixers[0])
        mixer = MixerShape(inner, 128, width, rows=3, channels=channels, groups=1, scalar=True)
        head_dim = hidden // heads
    else:
        _, layers, _, kv_heads, _, value_heads = SHAPES[name]
        channels, most, head_dim = (2 * 16 + value_heads) * 128, 3, 256
        mixer = MixerShape(value_heads, 128, 128, rows=3, channels=channels, groups=16)
        layers //= 4
    state = most * mixer.nbytes(torch.bfloat16, codec)
    spec = ChunkSpec("0" * 64, codec, "bfloat16", layers, kv_heads, head_dim, tokens)
    kv = chunk_file_bytes(spec)
    return kv, chunk_file_bytes(replace(spec, state=state)) - kv


Rows = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


@torch.inference_mode()
def errors(
    length: int, seed: int, *, scalar: bool, heads: int = 2, key: int = 128
) -> dict[str, float]:
    """The largest error over all orders of four documents of so many tokens, and of the rule by
    blocks over the rows of one order."""
    source = torch.Generator().manual_seed(seed)

    def noise(*shape: int) -> Tensor:
        return torch.randn(shape, generator=source)

    def rows() -> Rows:
        k = gated_delta.normalised(noise(length, heads, key))
        decay = -torch.rand(length, heads, generator=source) * 0.02
        beta = torch.rand(length, heads, generator=source)
        return noise(length, heads, key) * key**-0.5, k, noise(length, heads, key), decay, beta

    documents = [rows() for _ in range(4)]
    rule = _fading if scalar else _delta
    shape = MixerShape(heads, key, key, rows=3, channels=key, groups=heads, scalar=scalar)
    zero = torch.zeros(heads, key, key)
    maps = [shape.mapped(rule(given, shape.apart(zero))) for given in documents]
    worst = direct = 0.0
    for order in permutations(range(4)):
        exact = torch.zeros(heads, key, key, dtype=torch.float64)
        for i in order:
            exact = _one_by_one(documents[i], exact, scalar)
        state: Tensor | None = None
        for i in order:
            state = maps[i].of(state)
        assert state is not None
        largest = float(exact.abs().max())
        worst = max(worst, float((state - exact).abs().max()) / largest)
        if order == (0, 1, 2, 3):
            by_blocks = zero
            for i in order:
                by_blocks = rule(documents[i], by_blocks)
            direct = float((by_blocks - exact).abs().max()) / largest
    return {"tokens": length, "composed": worst, "by blocks": direct}


def _delta(given: Rows, state: Tensor) -> Tensor:
    return gated_delta.run(*given, state)[1]


def _fading(given: Rows, state: Tensor) -> Tensor:
    q, k, v, decay, _ = given
    return mamba2.run(q, k, v, decay, state)[1]


def _one_by_one(given: Rows, state: Tensor, scalar: bool) -> Tensor:
    _, k, v, decay, beta = (x.double() for x in given)
    for t in range(len(k)):
        state, written = state * decay[t].exp()[:, None, None], v[t]
        if not scalar:
            written = (v[t] - (k[t][:, None, :] @ state)[:, 0]) * beta[t][:, None]
        state = state + k[t][..., None] * written[:, None, :]
    return state


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", default="qwen3.5-0.8b", choices=[*SHAPES, *GRANITES])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="time, bytes or error")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    record: dict[str, Any] = {"environment": describe(), "seed": args.seed, "shape": args.shape}
    if args.only in ("", "bytes"):
        record["bytes"] = {
            f"{name} {tokens} {codec}": chunk_bytes(name, tokens, codec)
            for name in (*SHAPES, *GRANITES) if name != "tiny"
            for tokens in LENGTHS for codec in ("raw", "k8v8")
        }  # fmt: skip
    if args.only in ("", "error"):
        record["error"] = {
            kind: [errors(length, args.seed, scalar=kind == "mamba2") for length in LENGTHS]
            for kind in ("gated delta", "mamba2")
        }
    if args.only in ("", "time"):
        record["time"] = first_token(random_hybrid(args.shape, args.seed), args.rounds, args.seed)
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(json.dumps(record, indent=1))
    print(json.dumps({k: v for k, v in record.items() if k != "environment"}, indent=1))


if __name__ == "__main__":
    main()
