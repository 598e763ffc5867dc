"""A GPU that is none: tensors that say "cuda", compute on the CPU, and are counted meanwhile.

Every operation of torch on a `DeviceTensor` passes `PretendedGpu.run`, which computes it with the
tensor in host memory that it holds, and books what CUDA would have been asked for. Views and
allocations ask for nothing. What is one operation and several kernels on CUDA is in `KERNELS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from benchmarks.launches.tally import Tally

CUDA, CPU = torch.device("cuda", 0), torch.device("cpu")
# Kernels of an operation on CUDA where it is not one: read in PyTorch's source, not measured.
KERNELS = {
    "sort": 3,  # up to 4,096 numbers: copy, arange, bitonic sort
    "_unique2": 6,  # a radix sort, and unique
    "isin": 14,  # by sorting: unique of both, cat, stable sort, eq, scatter
    "nonzero": 3,  # reduce, select
}
WAITS = {"nonzero", "_unique2", "masked_select", "unique_dim", "equal", "isin"}
# Nothing is started for these; views are known by their schema.
FREE = {
    "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "_unsafe_view",
    "detach", "detach_", "alias", "lift_fresh", "lift", "set_", "resize_", "_reshape_alias",
    "unsafe_chunk", "unsafe_split", "record_stream",
}  # fmt: skip
# Composed of others on a CPU, and one kernel on CUDA.
WHOLE = {"rms_norm", "scaled_dot_product_attention", "isin", "silu", "layer_norm"}


class DeviceTensor(torch.Tensor):
    """A tensor on the pretended GPU.

    Attributes:
        host: its numbers.
        gpu: that it is on.
    """

    host: Tensor
    gpu: PretendedGpu
    device = property(lambda self: CUDA)
    is_cuda = True
    is_cpu = False
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, host: Tensor, gpu: PretendedGpu) -> DeviceTensor:
        # "meta", because a build of torch without CUDA cannot enter a CUDA device.
        made: DeviceTensor = torch.Tensor._make_wrapper_subclass(
            cls, host.size(), strides=host.stride(), storage_offset=host.storage_offset(),
            dtype=host.dtype, device=torch.device("meta"),
        )  # fmt: skip
        return made

    def __init__(self, host: Tensor, gpu: PretendedGpu) -> None:
        self.host, self.gpu = host, gpu

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        ours = next(x for x in _tensors([args, kwargs or {}]) if isinstance(x, DeviceTensor))
        return ours.gpu.run(func, args, kwargs or {})

    def tolist(self) -> Any:
        self.gpu.refuse("tolist")
        self.gpu.tally.book("from device", "tolist")
        self.gpu.tally.book("wait", "tolist")
        return self.host.tolist()

    def get_device(self) -> int:
        return 0


class PretendedGpu(TorchDispatchMode):
    """Computes operations on its tensors, and those that make one, and books them.

    Attributes:
        recorded: what is computed is also kept here, to be computed again in the same memory, as a
            CUDA graph does it: Python is not asked again. None: nothing is recorded.
    """

    def __init__(self, tally: Tally) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.tally = tally
        self.recorded: list[Callable[[], Any]] | None = None

    def record(self, run: Callable[[], Tensor]) -> tuple[Tensor, Callable[[], None]]:
        """Stand for `kvstitch_gpu.recorded_steps.CudaGraphs`."""
        recorded: list[Callable[[], Any]] = []
        self.recorded = recorded
        try:
            out = run()
        finally:
            self.recorded = None

        def play() -> None:
            self.tally.book("graph", "replay")
            with _disable_current_modes():
                for compute in recorded:
                    compute()

        return out, play

    def keep(self, compute: Callable[[], Any], result: Any = None) -> None:
        """Note what was computed, if something is recorded, and where its result is."""
        if self.recorded is None:
            return
        if not isinstance(result, Tensor):
            self.recorded.append(compute)
            return
        into: Tensor = result
        self.recorded.append(lambda: into.copy_(compute()))

    def refuse(self, what: str) -> None:
        """Raise RuntimeError for what CUDA cannot record."""
        if self.recorded is not None:
            raise RuntimeError(f"operation not permitted when stream is capturing: {what}")

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        return self.run(func, args, kwargs or {})

    def on_device(self, x: Any) -> Any:
        """Return x with every tensor in it on this GPU; nothing is booked."""
        if isinstance(x, Tensor):
            return x if isinstance(x, DeviceTensor) else DeviceTensor(x, self)
        return type(x)(map(self.on_device, x)) if isinstance(x, list | tuple) else x

    def run(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Compute an operation of torch, and book it if a tensor of this GPU takes part."""
        name = str(func).split(".")[1]
        if str(func) == "aten.to.device":
            named = dict(zip(("device", "dtype", "non_blocking", "copy"), args[1:], strict=False))
            args, kwargs = args[:1], {**named, **kwargs}
        inputs = list(_tensors([args, kwargs]))
        ours = any(isinstance(x, DeviceTensor) for x in inputs)
        target = kwargs.get("device")
        # "meta" is what torch takes ours for.
        to_us = target is not None and torch.device(target).type in ("cuda", "meta")
        if not ours and not to_us:
            return func(*args, **kwargs)
        if name == "to" and to_us:
            same = ours and kwargs.get("dtype") in (None, args[0].dtype) and not kwargs.get("copy")
            return args[0] if same else self._moved(args[0], kwargs, to_us=True)
        composite = torch._C._dispatch_has_kernel_for_dispatch_key(
            func.name(), "CompositeImplicitAutograd"
        )
        if name not in WHOLE and composite:
            with self:
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        if name in ("to", "_to_copy"):
            return self._moved(args[0], kwargs, to_us=to_us or (ours and target is None))
        if name == "copy_":
            return self._copied(args, kwargs)
        return self._computed(func, name, args, kwargs, inputs)

    def _computed(
        self, func: Any, name: str, args: Any, kwargs: Mapping[str, Any], inputs: list[Tensor]
    ) -> Any:
        numbers, named = host(list(args)), {k: host(v) for k, v in kwargs.items()}
        if named.get("device") is not None:
            named["device"] = CPU
        named.pop("pin_memory", None)
        # An index or a value in host memory goes to the device first, and the host waits.
        if any(isinstance(x, DeviceTensor) for x in inputs):
            for x in inputs:
                if not isinstance(x, DeviceTensor) and x.dim():
                    self.refuse(f"{name}, an argument in host memory")
                    self.tally.book("to device", f"{name}: argument")
                    self.tally.book("wait", f"{name}: argument")
        of_cpu = func
        if name == "scaled_dot_product_attention":  # its own overload takes no numbers by keyword
            of_cpu = torch.nn.functional.scaled_dot_product_attention
        result = of_cpu(*numbers, **named)
        schema = func._schema
        written = {
            number
            for number, argument in enumerate(schema.arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
        }
        is_view = not written and any(r.alias_info is not None for r in schema.returns)
        if not is_view and name not in FREE:
            in_place = bool(written) or named.get("out") is not None
            self.keep(lambda: of_cpu(*numbers, **named), None if in_place else result)
        if name == "_local_scalar_dense" or name in WAITS:
            self.refuse(name)
        if name == "_local_scalar_dense":
            self.tally.book("from device", name)
            self.tally.book("wait", name)
        elif not is_view and name not in FREE:
            self.tally.book("kernel", name, KERNELS.get(name, 1))
            masked = name == "index" and any(x.dtype == torch.bool for x in inputs[1:])
            if name in WAITS or masked:
                self.tally.book("wait", name)
        if kwargs.get("out") is not None:
            return kwargs["out"]
        if 0 in written and isinstance(args[0], DeviceTensor):
            return args[0]
        return result if name in ("_local_scalar_dense", "equal") else self.on_device(result)

    def _moved(self, x: Tensor, kwargs: Mapping[str, Any], *, to_us: bool) -> Tensor:
        dtype = kwargs.get("dtype") or x.dtype
        numbers = host(x)
        copied = numbers.to(dtype, copy=True)
        self.keep(lambda: numbers, copied)
        if to_us and isinstance(x, DeviceTensor):  # another dtype, or a copy
            self.tally.book("kernel", "_to_copy")
            return DeviceTensor(copied, self)
        if not to_us and dtype != x.dtype:
            self.tally.book("kernel", "_to_copy")
        self._transfer(to_us, bool(kwargs.get("non_blocking")))
        return DeviceTensor(copied, self) if to_us else copied

    def _copied(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensor:
        target: Tensor = args[0]
        into, numbers = host(target), host(args[1])
        into.copy_(numbers)
        self.keep(lambda: into.copy_(numbers))
        to_us = isinstance(target, DeviceTensor)
        if to_us and isinstance(args[1], DeviceTensor):
            self.tally.book("kernel", "copy_")
        else:
            no_wait = kwargs.get("non_blocking") or (len(args) > 2 and args[2])
            self._transfer(to_us, bool(no_wait))
        return target

    def _transfer(self, to_us: bool, no_wait: bool) -> None:
        self.refuse("a copy from or to the host")
        self.tally.book("to device" if to_us else "from device", "copy")
        if not no_wait:
            self.tally.book("wait", "copy to device" if to_us else "copy from device")


def host(x: Any) -> Any:
    """Return x with every tensor of a pretended GPU in it replaced by the one in host memory."""
    if isinstance(x, DeviceTensor):
        return x.host
    return type(x)(map(host, x)) if isinstance(x, list | tuple) else x


def _tensors(x: Any) -> Iterator[Tensor]:
    if isinstance(x, Tensor):
        yield x
    elif isinstance(x, list | tuple):
        for part in x:
            yield from _tensors(part)
    elif isinstance(x, dict):
        yield from _tensors(list(x.values()))
