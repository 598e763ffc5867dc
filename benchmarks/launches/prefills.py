"""An engine on a pretended GPU, and what one prefill by each method asks of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.launches.driver import pretended_gpu
from benchmarks.launches.gpu import CUDA, DeviceTensor, PretendedGpu
from benchmarks.launches.tally import Tally
from benchmarks.speed.engines import Prompt, place
from kvstitch.kvstore import MemoryTier
from kvstitch.service.messages.replies import Done, Failed, TokenItem
from kvstitch.service.messages.reports import Report
from kvstitch.service.messages.requests import Generate, Method, Sampling
from kvstitch.service.worker.api import DecoderModel, SequenceKV, decode_step, decoder_for
from kvstitch_tune.prompts import kv_pool

METHODS = {
    "vanilla": Method("vanilla"),
    "pie": Method("pie"),
    "a3": Method("a3", {"ratio": 0.15}),
    "question_scout": Method("question_scout", {"ratio": 0.15}),
    "cacheblend": Method("cacheblend", {"ratio": 0.15}),
}
SIZES = {
    "hidden_size": 64, "num_attention_heads": 8, "num_key_value_heads": 2,
    "intermediate_size": 96, "vocab_size": 211, "head_dim": 32,
}  # fmt: skip
"""Of the model: what is asked of a GPU does not depend on how wide a layer is."""


@dataclass(frozen=True)
class Case:
    """A prompt in the memory tier, and the model's layers."""

    layers: int = 32
    tokens: int = 2048  # of the documents together
    chunks: int = 16
    codec: str = "raw"


@dataclass(frozen=True)
class Answered:
    """The first token's log-probabilities by token id, and the engine's report."""

    logprobs: Mapping[int, float]
    report: Report


Ask = Callable[[str], Answered]


@dataclass(frozen=True)
class Counts:
    """What one prefill asked for: by kind, by kind and name, and by kind and place."""

    rows: int  # whose attention is computed at the last layer but one
    kinds: dict[str, int]
    names: dict[str, int]
    places: dict[str, int]


def count(case: Case, methods: list[str], *, graphs: bool = False) -> dict[str, Counts]:
    """Return what one prefill by each method asks of a GPU, after a first one.

    Args:
        graphs: whether layers are recorded in between and replayed then.
    """
    tally, found = Tally(), {}
    with engine(case, tally=tally, graphs=graphs) as ask:
        for name in methods:
            ask(name)  # caches, checks of kernels, and what is to be recorded
            tally.start()
            report = ask(name).report
            tally.on = False
            found[name] = Counts(
                report.rows_per_layer[-2],
                tally.by_kind(),
                *(
                    {f"{kind}: {what}": times for (kind, what), times in of.most_common()}
                    for of in (tally.names, tally.places)
                ),
            )
    return found


def count_decode(layers: int, context: int = 2048) -> dict[str, int]:
    """Return what a decode step of one sequence asks of a GPU, before it is recorded."""
    tally = Tally()
    decoder = decoder_for(_model(Case(layers=layers, tokens=context)))
    with pretended_gpu(tally) as gpu:
        _Move(gpu).everything_in(decoder)
        decoder.device = CUDA
        pool = kv_pool(decoder, context + 2)
        kv = pool.reserve(context + 2)
        assert kv is not None
        kv.set_length(context)
        for _ in range(2):
            tally.start()
            decode_step(decoder, [Decoding(kv, context)])
        return tally.by_kind()


@dataclass
class Decoding:
    """A sequence of which the last token is fed; implements `Decodable`."""

    kv: SequenceKV | None
    position: int
    lora: str = ""

    @property
    def tokens(self) -> list[int]:
        return [5]


def computed(
    case: Case, methods: list[str], *, counted: bool, graphs: bool = False
) -> dict[str, Mapping[int, float]]:
    """Return log-probabilities of every first token by method, on the CPU or as it is counted."""
    tally, shown = Tally() if counted else None, SIZES["vocab_size"]
    with engine(case, tally=tally, logprobs=shown, graphs=graphs) as ask:
        return {name: [ask(name), ask(name)][1].logprobs for name in methods}


@contextmanager
def engine(
    case: Case, *, tally: Tally | None = None, logprobs: int | None = None, graphs: bool = False
) -> Iterator[Ask]:
    """An engine with every chunk in its memory tier; answers one token by a method's name.

    Args:
        tally: counts what is asked of a GPU; None: it runs on the CPU.
        logprobs: of the first token, of so many most likely ones.
        graphs: whether layers are recorded after each answer, where that is possible.
    """
    decoder = decoder_for(_model(case))
    prompt = Prompt(decoder, case.tokens, case.chunks, 0)
    if tally is None:
        with torch.inference_mode(), _answering(decoder, prompt, case, logprobs, graphs) as ask:
            yield ask
        return
    with pretended_gpu(tally) as gpu:
        _Move(gpu).everything_in(decoder)
        decoder.device = CUDA
        with _answering(decoder, prompt, case, logprobs, graphs) as ask:
            yield ask


@contextmanager
def _answering(
    decoder: DecoderModel, prompt: Prompt, case: Case, logprobs: int | None, graphs: bool
) -> Iterator[Ask]:
    # Room for another prompt, on which a recording is compared.
    pool = (1 + graphs) * len(prompt.ids)
    with place(decoder, MemoryTier(8 << 30), pool, codec=case.codec, graphs=graphs) as served:
        torch.manual_seed(1)
        on_cpu, decoder.device = decoder.device, torch.device("cpu")  # nothing is pinned
        for key, chunk in prompt.random_chunks(served, decoder).items():
            served.store.put(key, chunk)
        decoder.device = on_cpu
        number = iter(range(1 << 30))

        def ask(name: str) -> Answered:
            sampling = Sampling(max_tokens=1, logprobs=logprobs)
            parts = prompt.system, prompt.documents, prompt.question, METHODS[name]
            served.submit(Generate(str(next(number)), *parts, sampling=sampling))
            found: dict[int, float] = {}
            while True:
                for event in served.step():
                    if isinstance(event, TokenItem) and event.logprobs is not None:
                        found = dict(event.logprobs.top)
                    if isinstance(event, Failed):
                        raise RuntimeError(event.message)
                    if isinstance(event, Done):
                        while not served.idle_work.idle:
                            served.step()
                        return Answered(found, event.report)

        yield ask


def _model(case: Case) -> Any:
    config = LlamaConfig(
        **SIZES, num_hidden_layers=case.layers, max_position_embeddings=2 * case.tokens + 1024,
        rope_theta=500_000.0, eos_token_id=None, bos_token_id=None, dtype=torch.bfloat16,
    )  # fmt: skip
    torch.manual_seed(0)
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    return model.eval().requires_grad_(False)


class _Move:
    """Moves a decoder's tensors to a pretended GPU in place; a tensor held twice stays one."""

    def __init__(self, gpu: PretendedGpu) -> None:
        self._gpu = gpu
        # The originals are kept, so that no other object gets their id.
        self._moved: dict[int, tuple[torch.Tensor, DeviceTensor]] = {}
        self._seen: set[int] = set()

    def everything_in(self, x: Any) -> Any:
        """Return x, or what stands for it on the GPU if it is a tensor or a tuple."""
        if isinstance(x, torch.Tensor):
            return self._tensor(x)
        if isinstance(x, tuple) and not hasattr(x, "_fields"):
            return tuple(map(self.everything_in, x))
        if id(x) in self._seen:
            return x
        self._seen.add(id(x))
        if isinstance(x, list):
            x[:] = map(self.everything_in, x)
        elif isinstance(x, nn.Module):
            for module in x.modules():
                for held in (module._parameters, module._buffers):
                    for name, value in held.items():
                        held[name] = None if value is None else self._tensor(value)
        elif type(x).__module__.startswith("kvstitch.service.") and hasattr(x, "__dict__"):
            for name, value in vars(x).items():
                object.__setattr__(x, name, self.everything_in(value))
        return x

    def _tensor(self, x: torch.Tensor) -> Any:
        if isinstance(x, DeviceTensor):
            return x
        if id(x) not in self._moved:
            self._moved[id(x)] = x, DeviceTensor(x.detach(), self._gpu)
        return self._moved[id(x)][1]
