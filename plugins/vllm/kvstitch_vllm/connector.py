"""vLLM's side: a connector that loads the KV of a prompt from shared memory. It runs in vLLM.

A request names a segment: `kv_transfer_params={"kvstitch": {"place": …}}`. The scheduler claims all
of its tokens but the prompt's last, so that one is computed; each rank writes its heads of a layer
to vLLM's paged cache when that layer is due. What cannot be loaded is reported, and vLLM computes
it. With `{"kvstitch": {"check": WEIGHTS}}` the answer says whether this vLLM can be handed KV of
these weights.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from vllm.distributed import parallel_state
from vllm.distributed.kv_transfer.kv_connector.v1 import base
from vllm.logger import init_logger

from kvstitch_vllm.segment import NoSegment, hash_of, read
from kvstitch_vllm.weights import weights_of

logger = init_logger(f"vllm.{__name__}")

PARAMS = "kvstitch"
LAYER = re.compile(r"\.(\d+)\.")


@dataclass
class Load:
    """Tokens `first` to `end` of a segment; `blocks` are all of the request's cache."""

    place: str
    first: int
    end: int
    blocks: list[int]


@dataclass
class Loads(base.KVConnectorMetadata):  # type: ignore[misc]
    of: list[Load] = field(default_factory=list)


@dataclass
class Opened:
    """A load under way: a segment, and where its tokens go in vLLM's cache."""

    load: Load
    segment: Any  # an open safetensors file
    slots: Tensor

    def write(self, name: str, layer: Any) -> None:
        cache, impl = layer.kv_cache, layer.impl
        rows = self.segment.get_slice(_number_of(name))
        heads = _heads_of_rank(rows.get_shape()[1], impl.num_kv_heads)
        k, v = rows[:, heads, self.load.first : self.load.end].transpose(1, 2).to(cache.device)
        # The backend's own way into its cache: layouts differ by processor.
        slots = self.slots.to(cache.device)
        impl.do_kv_cache_update(layer, k.contiguous(), v.contiguous(), cache, slots)


class StitchedKv(base.KVConnectorBase_V1):  # type: ignore[misc]
    """One in the scheduler, which decides, and one in each worker, which loads."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any = None) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        transfer, model = vllm_config.kv_transfer_config, vllm_config.model_config
        extra = transfer.kv_connector_extra_config or {}
        self._folder = str(extra.get("folder", "/dev/shm"))
        self._block = vllm_config.cache_config.block_size
        if str(vllm_config.cache_config.cache_dtype).startswith("fp8"):
            raise ValueError(
                "kvstitch hands over KV in the model's own type: leave --kv-cache-dtype out"
            )
        if transfer.kv_load_failure_policy != "recompute":
            raise ValueError('set "kv_load_failure_policy": "recompute" in --kv-transfer-config')
        changed = model.quantization or getattr(model, "hf_overrides", None)
        if changed and not extra.get("allow_changed"):
            raise ValueError(
                f"vLLM changes the model ({changed}), so its KV is not kvstitch's: to use it all "
                'the same set "allow_changed": true in kv_connector_extra_config'
            )
        self._dtype = str(model.dtype).removeprefix("torch.")
        # The scheduler's: what was claimed, and what the next step loads.
        self._claimed: dict[str, tuple[str, int, int]] = {}
        self._next = Loads()
        scheduler = role == base.KVConnectorRole.SCHEDULER
        self._weights = weights_of(model.model) if scheduler else ""
        # A worker's: blocks that could not be filled, and what this step loads into which layers.
        self._failed: set[int] = set()
        self._opened: list[Opened] = []
        self._due: dict[str, Any] = {}

    # -- in the scheduler -------------------------------------------------------------------------

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int, bool]:
        place = _asked(request).get("place")
        if not isinstance(place, str) or request.lora_request is not None:
            return 0, False
        try:
            said = read(self._folder, place).metadata()
            tokens = int(said["tokens"])
            prompt = hash_of(list(request.prompt_token_ids or ())[:tokens])
            own = {"weights": self._weights, "dtype": self._dtype, "prompt": prompt}
            if other := [name for name in own if own[name] != said[name]]:
                raise NoSegment(f"its KV has another {' and another '.join(other)}")
        except NoSegment as error:
            logger.warning("a prompt is computed: %s", error)
            return 0, False
        end = min(tokens, request.num_tokens - 1)
        if end <= num_computed_tokens:
            return 0, False
        self._claimed[request.request_id] = place, num_computed_tokens, end
        return end - num_computed_tokens, False

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        claimed = self._claimed.pop(request.request_id, None)
        if claimed is not None and num_external_tokens:
            self._next.of.append(Load(*claimed, list(blocks.get_block_ids()[0])))

    def build_connector_meta(self, scheduler_output: Any) -> Loads:
        loads, self._next = self._next, Loads()
        return loads

    def request_finished(
        self, request: Any, block_ids: list[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        self._claimed.pop(request.request_id, None)
        if (weights := _asked(request).get("check")) is None:
            return False, None
        same = weights == self._weights
        return False, {PARAMS: {"same_weights": same, "dtype": self._dtype}}

    # -- in a worker ------------------------------------------------------------------------------

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        loads = self._get_connector_metadata()
        assert isinstance(loads, Loads)
        found = forward_context.no_compile_layers.items() if loads.of else ()
        self._due = {
            n: each for n, each in found if isinstance(getattr(each, "kv_cache", 0), Tensor)
        }
        for load in loads.of:
            with self._or_failed(load):
                self._opened.append(self._open(load))
        # A graph of the whole step asks for no layer.
        mode = getattr(forward_context, "cudagraph_runtime_mode", None)
        if getattr(mode, "name", "") == "FULL":
            for name in list(self._due):
                self.wait_for_layer_load(name)

    def _open(self, load: Load) -> Opened:
        segment, at = read(self._folder, load.place), torch.arange(load.first, load.end)
        slots = torch.tensor(load.blocks)[at // self._block] * self._block + at % self._block
        if not set(map(_number_of, self._due)) <= set(segment.keys()):
            raise NoSegment(f"vLLM's layers {sorted(self._due)} are not those of its KV")
        return Opened(load, segment, slots)

    def wait_for_layer_load(self, layer_name: str) -> None:
        if (layer := self._due.pop(layer_name, None)) is None:
            return
        for opened in self._opened:
            with self._or_failed(opened.load):
                opened.write(layer_name, layer)

    def wait_for_save(self) -> None:
        for opened in self._opened if self._due else ():
            with self._or_failed(opened.load):
                raise NoSegment(f"vLLM has not asked for the layers {sorted(self._due)}")
        self._opened, self._due = [], {}

    @contextmanager
    def _or_failed(self, load: Load) -> Iterator[None]:
        """Have vLLM compute what could not be loaded."""
        try:
            yield
        except Exception as error:
            logger.error("%s could not be loaded, it is computed: %r", load.place, error)
            blocks = slice(load.first // self._block, -(-load.end // self._block))
            self._failed.update(load.blocks[blocks])

    def get_block_ids_with_load_errors(self) -> set[int]:
        failed, self._failed = self._failed, set()
        return failed

    def save_kv_layer(
        self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any
    ) -> None:
        return


def _asked(request: Any) -> dict[str, Any]:
    asked = (request.kv_transfer_params or {}).get(PARAMS)
    return asked if isinstance(asked, dict) else {}


def _number_of(layer: str) -> str:
    found = LAYER.search(layer)
    return found[1] if found else ""


def _heads_of_rank(all_heads: int, heads: int) -> slice:
    """Return the KV heads of this rank; where there are more ranks, several have the same one."""
    rank = parallel_state.get_tensor_model_parallel_rank()
    ranks = parallel_state.get_tensor_model_parallel_world_size()
    if heads != max(1, all_heads // ranks):
        raise NoSegment(f"its KV has {all_heads} heads, {ranks} ranks of vLLM {heads} each")
    first = rank * all_heads // ranks
    return slice(first, first + heads)
