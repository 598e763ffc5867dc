"""Two ranks compute what one does: prompts, decode steps, stored chunks, eviction, requests.

One other process serves all of these tests; it loads one tiny model after another.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor

from service.errors import InvalidRequest, InvalidSetting, ModelRefused
from service.messages.requests import Generate, Method
from service.shared.worker_settings import WorkerSettings
from service.worker.forward import selfcheck
from service.worker.gate.correctness_gate import GateSettings
from service.worker.kv.pool import KVPool, SequenceKV
from service.worker.loading import chunk_stream
from service.worker.methods.bases.dense import DenseMethod
from service.worker.methods.fusion.vanilla import Method as Vanilla
from service.worker.methods.layer_view import LayerView
from service.worker.methods.registry import make_fusion
from service.worker.model.addressing import Addressing
from service.worker.model.load import load
from service.worker.model.lora.folder import MODULES
from service.worker.model.model_facts import ModelFacts
from service.worker.parallel import processes
from service.worker.parallel.exchange import Exchange
from service.worker.parallel.processes import TensorParallel, refuse
from service.worker.parallel.sharded_model import refuse_model
from service.worker.sequences.admission import Admission
from tests.kvstore.fake_tier import FakeTier
from tests.service.worker.engines import A3, DOCUMENTS, PIE, VANILLA, rig
from tests.service.worker.lora_folders import write_lora
from tests.service.worker.parallel.served import Served, answered, assert_same, decoded_together
from tests.service.worker.tiny import (
    Q,
    S,
    Tiny,
    assert_close,
    difference,
    random_model,
    rope_of,
    tiny,
    tiny_config,
    tiny_of,
)

# What they have beyond Llama: biases and windows that the prompts reach beyond, norms of heads.
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {
        "use_sliding_window": True,
        "sliding_window": 9,
        "layer_types": ["full_attention"] * 2 + ["sliding_attention"] * 3,
    },
    "qwen3": {},
}
FUSIONS: dict[str, dict[str, Any]] = {
    "vanilla": {},
    "pie": {},
    "a3": {"ratio": 0.3},
    "cacheblend": {"ratio": 0.3},
    "question_scout": {"ratio": 0.3},
    "legolink": {"first": 2, "last": 1},
    "full_reuse": {},
}
HEADS: dict[str, Any] = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}
EVICTIONS = ("snapkv", "ada_snapkv", "pyramidkv", "h2o")


@pytest.fixture(scope="module")
def ended() -> list[str]:
    """Why the ranks ended."""
    return []


@pytest.fixture(scope="module")
def ranks(ended: list[str]) -> Iterator[TensorParallel]:
    threads = torch.get_num_threads()
    with TensorParallel(2, device="cpu", on_end=ended.append) as started:
        yield started
    torch.set_num_threads(threads)


def test_a_start_that_fails_leaves_neither_processes_nor_folders(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("no other process came")

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(Exchange, "open", fail)
    starting = TensorParallel(2, device="cpu", on_end=lambda why: None)
    with pytest.raises(RuntimeError, match="no other process"), starting:
        pass
    assert not any(Path(f"/proc/{pid}").exists() for pid in starting.pids)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module", params=FAMILIES)
def both(
    request: pytest.FixtureRequest, ranks: TensorParallel, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Served, Served]:
    """The same model in one process and in two."""
    folder = tmp_path_factory.mktemp(request.param)
    config = tiny_config(request.param, "llama3", **FAMILIES[request.param])
    random_model(config).save_pretrained(folder)
    decoder, _ = ranks.load(str(folder), dtype="float32")
    assert bool(decoder.windows) == bool(FAMILIES[request.param])
    return Served(load(str(folder), dtype="float32"), KVPool), Served(decoder, ranks.make_pool)


@torch.inference_mode()
def test_prompts_and_answers_are_those_of_one_rank(both: tuple[Served, Served]) -> None:
    """Chunks that one rank computed are read by two, and the reverse."""
    one, two = both
    whole, own = one.decoder.projections[0], two.decoder.projections[0]
    for name in ("qkv", "gate_up", "down"):
        assert 2 * getattr(own, name).weight.numel() == getattr(whole, name).weight.numel()
    assert 2 * two.pool().spare == one.pool().spare
    written, together = one.chunks(), two.chunks()
    for a, b in zip(written, together, strict=True):
        assert a.spec == b.spec and a.nbytes == b.nbytes
        for layer in range(one.decoder.layers):
            for x, y in zip(a.layer(layer), b.layer(layer), strict=True):
                assert_close("chunk of two ranks", y, x)
    for name, parameters in FUSIONS.items():
        method = make_fusion(name, parameters)
        assert isinstance(method, DenseMethod)
        order, missing = [0, 1, 3, 2], 2 if name in ("question_scout", "cacheblend") else None
        cached = [None if i == missing else written[i] for i in order]
        expected = answered(one, method, cached)
        assert_same(name, answered(two, method, cached), expected)
        if name == "a3":
            assert_same(
                "read by one", answered(one, method, [together[i] for i in order]), expected
            )


@torch.inference_mode()
def test_eviction_keeps_what_one_rank_keeps(both: tuple[Served, Served]) -> None:
    one, two = both
    written = one.chunks()
    cached = [written[i] for i in (0, 1, 3, 2)]
    pie = make_fusion("pie", {})
    assert isinstance(pie, DenseMethod)
    for name in EVICTIONS:
        expected = answered(one, pie, cached, name)
        assert_same(name, answered(two, pie, cached, name), expected)


@pytest.mark.parametrize("family", ["granite", "mistral", "phi3", "smollm3"])
def test_other_families_pass_the_start_up_check(
    family: str, ranks: TensorParallel, tmp_path: Path
) -> None:
    """Together the ranks compute what transformers does, and a stitched prompt is exact."""
    random_model(tiny_config(family, rope_of(family))).save_pretrained(tmp_path)
    _, differences = ranks.load(str(tmp_path), dtype="float32")
    assert max(differences) < 1e-5


def answered_by_both(
    one: Served, two: Served, claim: str, lora: str = ""
) -> tuple[torch.Tensor, torch.Tensor]:
    """Chunks of both, a prompt with some of them computed anew, and an answer."""
    method = make_fusion("question_scout", {"ratio": 0.3})
    assert isinstance(method, DenseMethod)
    written, together = one.chunks(lora), two.chunks(lora)
    for a, b in zip(written, together, strict=True):
        for layer in range(one.decoder.layers):
            for x, y in zip(a.layer(layer), b.layer(layer), strict=True):
                assert_close(f"{claim}: chunk of two ranks", y, x)
    cached = [written[i] for i in (0, 1, 3, 2)]
    expected = answered(one, method, cached, lora=lora)
    assert_same(claim, answered(two, method, cached, lora=lora), expected)
    return expected


@pytest.mark.parametrize("family", ["llama", "phi3"])
@torch.inference_mode()
def test_adapters_of_two_ranks_add_what_those_of_one_do(
    family: str, ranks: TensorParallel, tmp_path: Path
) -> None:
    """Of all modules and of some, in separate runs and in a batch with the base model; phi3 has its
    projections in one module each."""
    model = random_model(tiny_config(family, rope_of(family)))
    model.save_pretrained(tmp_path / "model")
    some = ("o_proj", "qkv_proj" if family == "phi3" else "v_proj")
    loras = {
        "all": write_lora(tmp_path / "all", model, modules=MODULES, rank=4),
        "some": write_lora(tmp_path / "some", model, modules=some, rank=3, seed=2),
    }
    folder = str(tmp_path / "model")
    whole = load(folder, dtype="float32")
    split, _ = ranks.load(folder, dtype="float32", loras={n: str(f) for n, f in loras.items()})
    for name, lora in loras.items():
        selfcheck.add_lora(whole, name, lora)
        off, moved = selfcheck.add_lora(split, name, lora, ranks.lora_logits[name])
        assert off < 1e-4 < 0.1 < moved
    assert whole.loras["all"].fingerprint == split.loras["all"].fingerprint
    one, two = Served(whole, KVPool), Served(split, ranks.make_pool)
    answers = {name: answered_by_both(one, two, f"LoRA {name}", name) for name in ("all", "some")}
    answers[""] = answered_by_both(one, two, "no LoRA")
    assert difference(answers["all"][1], answers[""][1]) > 0.1
    names = ("all", "", "some", "")
    together, expected = (decoded_together(served, names) for served in (two, one))
    assert_close("a batch of adapters and the base", together, expected)


@pytest.mark.parametrize("quantize", ["int8", "int4"])
@torch.inference_mode()
def test_quantised_weights_of_two_ranks_are_those_of_one(
    quantize: str, ranks: TensorParallel, tmp_path: Path
) -> None:
    """The same levels and scales, cut; in sizes that int4's groups of 32 columns divide."""
    sizes: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 128}
    model = random_model(tiny_config("qwen2", **HEADS, **sizes))
    model.save_pretrained(tmp_path)
    whole = load(str(tmp_path), dtype="float32", quantize=quantize)
    split, differences = ranks.load(str(tmp_path), dtype="float32", quantize=quantize)
    assert max(differences) < 1e-5
    for name in ("output", "down"):
        a, b = (getattr(d.projections[0], name).stored for d in (whole, split))
        assert a.bits == b.bits == int(quantize[3:]) and a.shape[1] == 2 * b.shape[1]
        first = a.dequantised(torch.float32)[:, : b.shape[1]]
        assert_close(f"{quantize} {name}", b.dequantised(torch.float32), first)
    answered_by_both(Served(whole, KVPool), Served(split, ranks.make_pool), quantize)


def test_int4_whose_groups_would_be_cut_is_refused(ranks: TensorParallel, tmp_path: Path) -> None:
    sizes: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 96}
    model = random_model(tiny_config("llama", **HEADS, **sizes))
    model.save_pretrained(tmp_path)
    with pytest.raises(ModelRefused, match="int4 needs multiples of 32") as refused:
        ranks.load(str(tmp_path), dtype="float32", quantize="int4")
    assert refused.value.field == "tensor_parallel"


# -- requests, through an engine ------------------------------------------------------------------


@pytest.fixture(scope="module")
def llama(ranks: TensorParallel, tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    """A model in two processes, for the tests below, which do not compare families."""
    folder = tmp_path_factory.mktemp("engine")
    model = random_model(tiny_config("llama", "llama3"))
    model.save_pretrained(folder)
    decoder, _ = ranks.load(str(folder), dtype="float32")
    return replace(tiny_of(model), decoder=decoder)


def test_an_engine_of_two_ranks_answers_as_one(
    llama: Tiny, ranks: TensorParallel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks that arrive layer by layer or are damaged, eviction, kept prompts, drafts, aborts."""
    monkeypatch.setattr(chunk_stream, "PART_BYTES", 1)
    answers = []
    for model, make_pool in ((tiny("llama", "llama3"), KVPool), (llama, ranks.make_pool)):
        tier = FakeTier("slow")
        with rig(
            model,
            tiers=[tier],
            sketches=False,
            prefix_cache=True,
            draft_tokens=3,
            make_pool=make_pool,
            checks=GateSettings(1.0, seed=0),
        ) as requests:
            requests.precompute()
            scout = Method("question_scout", {"ratio": 0.3})
            told = [requests.answer(scout), requests.answer(scout)]
            told.append(requests.answer(A3, eviction=Method("ada_snapkv", {"budget": 20})))
            damaged = requests.engine.admission.addresses(S, DOCUMENTS, "none", "")[2]
            assert damaged is not None
            tier.damage(damaged.key, -1)
            told.append(requests.answer(A3, prefix_cache=False))
            left = requests.submit(VANILLA, prefix_cache=False, max_tokens=50)
            requests.engine.step()
            requests.engine.abort(left, "cancelled")
            requests.run()
            gate = requests.engine.gate
            while gate is not None and gate.pending:
                requests.engine.step()
            assert requests.done(left).finish_reason == "cancelled"
            assert requests.engine.pool_free_share == 1
            tiers = [[d.tier for d in report.documents] for _, report in told]
            answers.append(([tokens for tokens, _ in told], tiers))
    assert answers[0] == answers[1]
    assert answers[0][1][1] == ["pool"] * 3 and answers[0][1][3][1] == "cold"


def test_every_change_of_a_sequence_reaches_the_other_ranks() -> None:
    """A new method of `SequenceKV` has to be `repeated`, called by work that all ranks do, or only
    read; say here which."""
    repeated = {name for name, own in vars(SequenceKV).items() if hasattr(own, "__wrapped__")}
    assert repeated == {"set_length", "shrink", "copy_to", "give_back"}
    repeated |= {"release"}  # which is giving back
    by_work_of_all_ranks = {"grow", "keep", "prompt_layer", "remember"}
    only_read = {"filled_tokens", "first_rows", "reserved_tokens", "kept_tokens", "runs"}
    public = {name for name in vars(SequenceKV) if not name.startswith("_")}
    assert public == repeated | by_work_of_all_ranks | only_read


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"fusion": Method("samkv")}, "fusion.method samkv"),
        ({"eviction": Method("kvec", {"budget": 20})}, "eviction.method kvec"),
        ({"eviction": Method("gemfilter", {"budget": 20})}, "eviction.method gemfilter"),
        ({"token_fates": True}, "include_tokens"),
    ],
)
def test_what_needs_all_heads_is_refused(llama: Tiny, changes: dict[str, Any], why: str) -> None:
    decoder = llama.decoder
    facts = ModelFacts(decoder.layers, decoder.heads, decoder.kv_heads, ranks=2)
    addressing = Addressing(decoder, fingerprint="tiny", codec="raw")
    admission = Admission(decoder, addressing, facts, pool_tokens=400)
    request = Generate("r", S, DOCUMENTS, Q, fusion=PIE)
    with pytest.raises(InvalidRequest, match=why):
        admission.sequence(msgspec.structs.replace(request, **changes), 0.0)


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (
            tiny_config("llama", hidden_size=72, num_attention_heads=9, num_key_value_heads=3),
            "9 query heads",
        ),
        (tiny_config("llama", num_attention_heads=6, num_key_value_heads=3), "3 KV heads"),
        (tiny_config("llama", intermediate_size=81), "81 values in its MLP"),
        (tiny_config("olmo2"), "type olmo2"),
        (tiny_config("mixtral"), "type mixtral"),
        (tiny_config("gemma2"), "type gemma2"),
        (tiny_config("gpt_oss"), "type gpt_oss"),
        (
            tiny_config("llama", quantization_config={"quant_method": "torchao"}),
            "weights are quantised",
        ),
    ],
)
def test_what_cannot_be_split_is_refused(config: Any, why: str) -> None:
    with pytest.raises(ModelRefused, match=why) as refused:
        refuse_model(config, 2)
    assert refused.value.field == "tensor_parallel"


@pytest.mark.parametrize(
    ("setting", "why"),
    [
        ({"methods_dir": "folder"}, "methods of your own"),
        ({"sketches": True}, "SamKV"),
    ],
)
def test_settings_that_need_one_process_are_refused(setting: dict[str, Any], why: str) -> None:
    refuse(WorkerSettings("model", "ipc:///tmp/s", kv_dir=""))
    with pytest.raises(InvalidSetting, match=why):
        refuse(WorkerSettings("model", "ipc:///tmp/s", kv_dir="", **setting))


@torch.inference_mode()
def test_a_fault_on_all_ranks_fails_one_prompt_and_on_one_rank_all(
    llama: Tiny, ranks: TensorParallel, ended: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last test: after it the ranks are out of step."""
    served = Served(llama.decoder, ranks.make_pool)
    nothing = [None] * 4
    before = answered(served, Vanilla(), nothing)
    with pytest.raises(ZeroDivisionError):
        answered(served, Faulty(), nothing)
    assert_same("after a fault", answered(served, Vanilla(), nothing), before)
    assert not ended
    monkeypatch.setattr(processes, "ANSWER_S", 1.0)
    with pytest.raises(ZeroDivisionError):
        answered(served, Faulty(only_in=os.getpid()), nothing)
    assert ended == ["rank 1 does not answer"]


@dataclass(frozen=True)
class Faulty(Vanilla):
    """Divides by zero at layer 2, in all processes or one."""

    only_in: int = 0

    def select(self, view: LayerView) -> Tensor | None:
        if view.layer == 2 and self.only_in in (0, os.getpid()):
            raise ZeroDivisionError
        return None
