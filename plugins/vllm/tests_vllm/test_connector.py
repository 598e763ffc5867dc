"""The connector, in a small stand-in for vLLM: its base class, a request, a paged cache."""

from __future__ import annotations

import enum
import json
import logging
import resource
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from kvstitch.service.errors import InvalidSetting
from kvstitch.service.shared.worker_settings import WorkerSettings
from kvstitch_vllm.hand_over import SharedMemory
from kvstitch_vllm.weights import weights_of

BLOCK, LAYERS, HEADS, DIM = 4, 3, 4, 8
IDS = list(range(100, 111))  # 11 tokens: two blocks and three tokens
ATTENTION = "model.layers.{}.self_attn.attn"


class Role(enum.Enum):
    SCHEDULER = 0
    WORKER = 1


class Base:
    """What the connector uses of KVConnectorBase_V1."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        self.metadata: Any = None

    def _get_connector_metadata(self) -> Any:
        return self.metadata


@dataclass
class Rank:
    """Which rank of how many this process is."""

    rank: int = 0
    ranks: int = 1


@pytest.fixture
def rank(monkeypatch: pytest.MonkeyPatch) -> Rank:
    """vLLM's modules as far as the connector imports them."""
    rank = Rank()
    base = {"KVConnectorBase_V1": Base, "KVConnectorMetadata": object, "KVConnectorRole": Role}
    state = {
        "get_tensor_model_parallel_rank": lambda: rank.rank,
        "get_tensor_model_parallel_world_size": lambda: rank.ranks,
    }
    modules: dict[str, dict[str, Any]] = {
        "vllm.distributed.kv_transfer.kv_connector.v1.base": base,
        "vllm.distributed.parallel_state": state,
        "vllm.logger": {"init_logger": logging.getLogger},
    }
    for name, content in modules.items():
        parts = name.split(".")
        for n in range(1, len(parts) + 1):
            outer, inner = ".".join(parts[: n - 1]), ".".join(parts[:n])
            if inner not in sys.modules:
                monkeypatch.setitem(sys.modules, inner, ModuleType(inner))
                if outer:
                    setattr(sys.modules[outer], parts[n - 1], sys.modules[inner])
        sys.modules[name].__dict__.update(content)
    monkeypatch.delitem(sys.modules, "kvstitch_vllm.connector", raising=False)
    return rank


@dataclass
class Layer:
    """A layer of vLLM's model, whose cache is `[slots, heads, DIM]` of K and of V."""

    heads: int
    kv_cache: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.kv_cache = torch.zeros(2, 16 * BLOCK, self.heads, DIM)
        self.impl = SimpleNamespace(num_kv_heads=self.heads, do_kv_cache_update=self._update)

    def _update(self, layer: Any, k: Tensor, v: Tensor, cache: Tensor, slots: Tensor) -> None:
        assert layer is self and k.is_contiguous() and v.is_contiguous()
        cache[0][slots], cache[1][slots] = k, v


@pytest.fixture
def shared(tmp_path: Path, model: Path) -> Iterator[SharedMemory]:
    with SharedMemory(worker(model, tmp_path)) as shared:
        yield shared


def worker(model: Path, folder: Path, **changed: Any) -> WorkerSettings:
    return WorkerSettings(
        str(model), address="", kv_dir="", plugins={"hand_over_dir": str(folder)}, **changed
    )


@pytest.mark.parametrize("changed", [{"quantize": "int8"}, {"loras": {"a": "b"}}], ids=str)
def test_a_worker_with_other_weights_is_refused(model, tmp_path, changed):
    with pytest.raises(InvalidSetting, match="the same weights"):
        SharedMemory(worker(model, tmp_path, **changed))


def kv() -> list[tuple[Tensor, Tensor]]:
    """Of a pool: a head's rows are no neighbours of the next one's."""
    arrays = torch.randn(LAYERS, 2, HEADS, len(IDS) + 5, DIM)[:, :, :, : len(IDS)]
    return [(k, v) for k, v in arrays]


def connector(tmp_path: Path, model: Path, role: Role, **changed: Any) -> Any:
    from kvstitch_vllm.connector import StitchedKv

    values = {"dtype": torch.float32, "quantization": None, "cache_dtype": "auto",
              "kv_load_failure_policy": "recompute", "model": str(model), "block_size": BLOCK,
              "kv_connector_extra_config": {"folder": str(tmp_path)}} | changed  # fmt: skip
    config = SimpleNamespace(**values)
    every = {"kv_transfer_config": config, "model_config": config, "cache_config": config}
    return StitchedKv(SimpleNamespace(**every), role)


def request(ids: list[int] = IDS, lora: Any = None, **params: Any) -> Any:
    return SimpleNamespace(
        request_id="r", prompt_token_ids=ids, num_tokens=len(ids), lora_request=lora,
        kv_transfer_params={"kvstitch": params} if params else None,
    )  # fmt: skip


@dataclass
class Engine:
    """One scheduler and one worker."""

    scheduler: Any
    worker: Any
    layers: dict[str, Any]

    @classmethod
    def of(cls, tmp_path: Path, model: Path, heads: int = HEADS) -> Engine:
        layers = {ATTENTION.format(n): Layer(heads) for n in (2, 0, 1)}
        scheduler, worker = (connector(tmp_path, model, role) for role in Role)
        return cls(scheduler, worker, layers)

    def claim(self, asked: Any, computed: int = 0) -> int:
        claimed, later = self.scheduler.get_num_new_matched_tokens(asked, computed)
        assert not later
        number: int = claimed
        return number

    def allocate(self, asked: Any, blocks: list[int], computed: int = 0) -> None:
        claimed = self.claim(asked, computed)
        given = SimpleNamespace(get_block_ids=lambda: (blocks,))
        self.scheduler.update_state_after_alloc(asked, given, claimed)

    def start(self, mode: str = "NONE") -> None:
        self.worker.metadata = self.scheduler.build_connector_meta(None)
        layers = {**self.layers, "other.0.mlp": object()}
        graphs = SimpleNamespace(name=mode)
        context = SimpleNamespace(no_compile_layers=layers, cudagraph_runtime_mode=graphs)
        self.worker.start_load_kv(context)

    def end(self) -> set[int]:
        """The blocks that could not be loaded."""
        self.worker.wait_for_save()
        failed: set[int] = self.worker.get_block_ids_with_load_errors()
        return failed

    def step(self) -> set[int]:
        self.start()
        for number in range(LAYERS):
            self.worker.wait_for_layer_load(ATTENTION.format(number))
        return self.end()

    def cache(self, layer: int) -> Tensor:
        found: Tensor = self.layers[ATTENTION.format(layer)].kv_cache
        return found


@pytest.fixture
def engine(rank: Rank, tmp_path: Path, model: Path) -> Engine:
    return Engine.of(tmp_path, model)


def test_all_but_the_last_token_is_loaded(engine, shared):
    layers, blocks = kv(), [7, 2, 5]
    engine.allocate(request(place=shared.put(layers, IDS).place), blocks)
    assert engine.step() == set()
    slots = [blocks[at // BLOCK] * BLOCK + at % BLOCK for at in range(len(IDS) - 1)]
    for number, given in enumerate(layers):
        for found, expected in zip(engine.cache(number), given, strict=True):
            assert torch.equal(found[slots], expected.transpose(0, 1)[:-1])
            assert not found[[n for n in range(len(found)) if n not in slots]].any()
    for n in range(LAYERS):
        engine.cache(n).zero_()
    assert engine.step() == set() and not engine.cache(0).any()  # it is loaded once


def test_what_vllm_has_is_not_loaded_again(engine, shared):
    asked = request(place=shared.put(kv(), IDS).place)
    engine.allocate(asked, [0, 1, 2], computed=BLOCK)
    engine.step()
    assert not engine.cache(0)[0, :BLOCK].any() and engine.cache(0)[0, BLOCK : len(IDS) - 1].any()
    assert engine.claim(asked, len(IDS) - 1) == 0


def test_a_layer_is_loaded_when_it_is_due(engine, shared):
    engine.allocate(request(place=shared.put(kv(), IDS).place), [7, 2, 5])
    engine.start()
    assert not any(engine.cache(n).any() for n in range(LAYERS))
    engine.worker.wait_for_layer_load(ATTENTION.format(0))
    assert [bool(engine.cache(n).any()) for n in range(LAYERS)] == [True, False, False]
    assert engine.end() == {7, 2, 5}  # vLLM has not asked for the others
    assert engine.step() == set()


def test_a_graph_of_the_whole_step_finds_all_layers(engine, shared):
    engine.allocate(request(place=shared.put(kv(), IDS).place), [7, 2, 5])
    engine.start("FULL")
    assert all(engine.cache(n).any() for n in range(LAYERS)) and engine.end() == set()


@pytest.mark.parametrize(("number", "ranks"), [(0, 2), (1, 2), (3, 4), (5, 8)])
def test_a_rank_takes_its_heads(rank, tmp_path, model, shared, number, ranks):
    rank.rank, rank.ranks = number, ranks
    own, first = max(1, HEADS // ranks), number * HEADS // ranks
    engine, given = Engine.of(tmp_path, model, own), kv()
    engine.allocate(request(place=shared.put(given, IDS).place), [0, 1, 2])
    assert not engine.step()
    expected = given[1][0][first : first + own].transpose(0, 1)[:-1]
    assert torch.equal(engine.cache(1)[0, : len(IDS) - 1], expected)


def test_what_cannot_be_loaded_is_reported_once(engine, shared):
    segment = shared.put(kv(), IDS)
    engine.allocate(request(place=segment.place), [7, 2, 5])
    segment.close()
    assert engine.step() == {7, 2, 5}
    assert engine.step() == set()
    engine.layers[ATTENTION.format(1)] = Layer(HEADS - 1)
    engine.allocate(request(place=shared.put(kv(), IDS).place), [1, 2, 3])
    assert engine.step() == {1, 2, 3}


CASES = ("no place", "other prompt", "longer prompt", "lora", "gone", "torn", "link",
         "other weights", "other type")  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_nothing_is_claimed_where_it_would_be_wrong(engine, shared, tmp_path, case):
    segment = shared.put(kv(), IDS)
    asked, claimed = request(place=segment.place), 0
    match case:
        case "no place":
            asked = request()
        case "other prompt":
            asked = request([*IDS[:5], 7, *IDS[6:]], place=segment.place)
        case "longer prompt":  # of which this is the beginning
            asked, claimed = request([*IDS, 7, 8], place=segment.place), len(IDS)
        case "lora":
            asked = request(lora=object(), place=segment.place)
        case "gone":
            segment.close()
        case "torn":
            segment.path.write_bytes(segment.path.read_bytes()[:-8])
        case "link":
            segment.path.rename(tmp_path / "elsewhere")
            segment.path.symlink_to(tmp_path / "elsewhere")
        case "other weights":
            engine.scheduler._weights = "0" * 32
        case "other type":
            engine.scheduler._dtype = "bfloat16"
    assert engine.claim(asked) == claimed


@pytest.mark.parametrize("place", ["/etc/passwd", "../x", "kvstitch-" + "0" * 32 + "/../a", 7, ""])
def test_a_place_leads_nowhere_else(engine, place):
    assert engine.claim(request(place=place)) == 0


@pytest.mark.parametrize(
    ("changed", "why"),
    [({"cache_dtype": "fp8_e5m2"}, "--kv-cache-dtype"), ({"quantization": "awq"}, "awq"),
     ({"hf_overrides": {"rope_theta": 1.0}}, "rope_theta"),
     ({"kv_load_failure_policy": "fail"}, "recompute")],
)  # fmt: skip
def test_settings_of_vllm_that_would_be_wrong(rank, tmp_path, model, changed, why):
    with pytest.raises(ValueError, match=why):
        connector(tmp_path, model, Role.SCHEDULER, **changed)


def test_it_says_whether_its_weights_are_the_same(engine, model):
    for weights, same in ((weights_of(model), True), ("0" * 32, False)):
        _, said = engine.scheduler.request_finished(request(check=weights), [])
        assert said == {"kvstitch": {"same_weights": same, "dtype": "float32"}}
    assert engine.scheduler.request_finished(request(place="x"), []) == (False, None)


def test_a_segment_is_its_users_alone_and_where_there_is_no_room_none_is_left(shared):
    segment = shared.put(kv(), IDS)
    modes = [path.stat().st_mode & 0o777 for path in (segment.path, segment.path.parent)]
    assert modes == [0o600, 0o700] and len(segment.path.name) == 32
    segment.close()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, before[1]))
    try:
        with pytest.raises(OSError):
            shared.put(kv(), IDS)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not list(segment.path.parent.iterdir())


def test_weights_differ_by_any_of_what_decides_kv(tmp_path, model):
    same, rotary, changed = (Path(shutil.copytree(model, tmp_path / name)) for name in "abc")
    assert weights_of(same) == weights_of(model)
    config = json.loads((rotary / "config.json").read_text())
    (rotary / "config.json").write_text(json.dumps({**config, "rope_theta": 1.0}))
    weights = changed / "model.safetensors"
    weights.write_bytes(bytes([*weights.read_bytes()[:-3], 1, 2, 3]))
    assert len({weights_of(each) for each in (same, rotary, changed)}) == 3
    weights.unlink()
    with pytest.raises(ValueError, match="safetensors"):
        weights_of(changed)
