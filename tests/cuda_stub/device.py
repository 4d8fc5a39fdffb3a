"""The values of a device without kernels: each operation's, computed on the CPU in its memory.

PyTorch's CUDA code runs first, on the runtime of ``build``: it checks devices, allocates, refuses
what is not deterministic and launches. Then the CPU's kernel computes the same operation.
"""

from __future__ import annotations

import ctypes
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from tests.cuda_stub.build import LIBRARY

_KINDS = ("launches", "waits", "copies")
_PACKAGES = tuple(f"/{name}/" for name in ("pfl_bench", "privacy", "tasks"))
_aten = torch.ops.aten
# The device's code is not asked: cuDNN's library, and where the host reads values in between, with
# how often it waits for them.
_WAITS = {
    _aten._local_scalar_dense: 1,
    _aten.bincount: 2,
    _aten.equal: 1,
    _aten.is_nonzero: 1,
    _aten.masked_select: 1,
    _aten.nonzero: 1,
    _aten.repeat_interleave: 1,
    _aten.unique_consecutive: 1,
    _aten._unique2: 1,
    _aten._linalg_eigh: 1,
}
_NOT_ASKED = {_aten.convolution, _aten.convolution_backward, _aten.embedding_dense_backward}
_BY_INDEX = {_aten.index, _aten.index_put, _aten.index_put_, _aten._index_put_impl_}
_IN_PLACE = {_aten.set_, _aten.resize_, _aten.record_stream}


@dataclass(frozen=True, slots=True)
class _Call:
    """An operation of a graph, on tensors of the CPU over the device's memory, which own none."""

    func: Any
    args: Sequence[Any]
    kwargs: dict[str, Any]
    results: Sequence[Tensor]


class StubGraph:
    """Stands for ``torch.cuda.CUDAGraph``: operations between begin and end are computed by replay.

    As on a GPU, nothing is computed while they are recorded, the host may wait for nothing, and
    what they need of memory is the pool's, where a later operation takes what an earlier one freed.
    """

    device: StubDevice

    def __init__(self) -> None:
        self._calls: list[_Call] = []
        self._pool: Any = None

    def capture_begin(self, pool: Any = None, **kwargs: Any) -> None:
        """Begin to record."""
        self._pool = pool or torch.cuda.graph_pool_handle()
        torch._C._cuda_beginAllocateCurrentStreamToPool(0, self._pool)
        self.device.recording = self._calls = []

    def capture_end(self) -> None:
        """End the recording."""
        self.device.recording = None
        torch._C._cuda_endAllocateToPool(0, self._pool)
        if self.device.waited:
            self.device.waited = False
            raise RuntimeError("operation failed due to a previous error during capture")

    def replay(self) -> None:
        """Compute what was recorded, in the same memory: one launch."""
        self.device.counts["launches"] += 1
        with _disable_current_modes():
            for call in self._calls:
                values = call.func(*call.args, **call.kwargs)
                values = [leaf for leaf in _leaves(values) if isinstance(leaf, Tensor)]
                for result, value in zip(call.results, values, strict=True):
                    if result.data_ptr() != value.data_ptr():
                        result.copy_(value)

    def __del__(self) -> None:
        if self._pool is not None:
            torch._C._cuda_releasePool(0, self._pool)


class StubDevice(TorchDispatchMode):
    """Computes what is asked of the device, and counts what a GPU's user pays for.

    Attributes:
        counts: Launches (cuDNN's not among them), waits of the host, and copies between the two.
        waits_at: Waits by line of the library, and by operation.
        float16: Operations whose result has float16, by name.
        recording: What a graph that is being captured has so far.
        waited: Whether the host waited meanwhile, so that the graph cannot be had.
    """

    def __init__(self) -> None:
        super().__init__()
        # Already in the process: found by its name.
        library = ctypes.CDLL(LIBRARY)
        self._counted = (ctypes.c_long * len(_KINDS)).in_dll(library, "stub_counts")
        self.counts: Counter[str] = Counter()
        self.waits_at: Counter[str] = Counter()
        self.float16: Counter[str] = Counter()
        self.recording: list[_Call] | None = None
        self.waited = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        packet = func.overloadpacket
        is_on_device = any(map(_is_on_device, _leaves(args))) or (
            bool(kwargs) and any(map(_is_on_device, kwargs.values()))
        )
        if not is_on_device or func.is_view or packet in _IN_PLACE:
            return func(*args, **kwargs)
        if func.namespace == "c10d":  # between processes, from memory to memory
            return _computed(func, args, kwargs, None)
        twin_rng = _twin_generator(func, kwargs)
        by_mask = packet in _BY_INDEX and any(
            isinstance(i, Tensor) and i.dtype in (torch.bool, torch.uint8) for i in args[1]
        )
        is_asked = not (by_mask or packet in _WAITS or packet in _NOT_ASKED)
        if self.recording is not None and (by_mask or packet in _WAITS):
            self.waited = True
            raise RuntimeError("operation not permitted when stream is capturing")
        found = None
        if is_asked:
            before = list(self._counted)
            found = func(*args, **kwargs)
            for kind, old, new in zip(_KINDS, before, self._counted, strict=True):
                self._note(kind, new - old, packet)
        else:
            self._note("waits", 1 if by_mask else _WAITS.get(packet, 0), packet)
            if packet is _aten._local_scalar_dense:
                self._note("copies", 1, packet)
        if self.recording is not None and is_asked:
            result, values = found, None
        else:
            values = _computed(func, args, kwargs, twin_rng)
            if not is_asked and str(packet).endswith("_"):
                return args[0]
            result = _with_values(found, values, is_asked)
        if self.recording is not None:
            assert twin_rng is None, f"{packet} draws from a generator"
            given = args, kwargs, result
            own, named, made = (_mapped(lambda x: _twin(x, None), part) for part in given)
            results = [leaf for leaf in _leaves(made) if isinstance(leaf, Tensor)]
            self.recording.append(_Call(func, own, named, results))
        for leaf in _leaves(result):
            if isinstance(leaf, Tensor) and leaf.dtype == torch.float16:
                self.float16[str(packet)] += 1
        return result

    def _note(self, kind: str, number: int, packet: Any) -> None:
        if not number:
            return
        self.counts[kind] += number
        if kind == "waits":
            self.waits_at[f"{_line_of_the_library()} {packet}"] += number


def _line_of_the_library() -> str:
    """The innermost of its lines that is being run; reading their sources would take longest."""
    for frame, line in traceback.walk_stack(None):
        name = frame.f_code.co_filename
        if any(package in name for package in _PACKAGES):
            return f"{Path(name).name}:{line}"
    return "a test"


def _computed(
    func: Any, args: Sequence[Any], kwargs: dict[str, Any], rng: torch.Generator | None
) -> Any:
    """What the CPU's kernel gives, in place too."""
    with _disable_current_modes(), torch.random.fork_rng(devices=[], enabled=bool(rng)):
        own, named = (_mapped(lambda x: _twin(x, rng), x) for x in (args, kwargs))
        if rng is not None:
            torch.default_generator.set_state(rng.get_state())
        return func(*own, **named)


# Instead of torch.utils._pytree's, whose many kinds of containers cost more than the operations.
def _leaves(given: Any) -> Iterator[Any]:
    if isinstance(given, tuple | list):
        for part in given:
            yield from _leaves(part)
    else:
        yield given


def _mapped(function: Callable[[Any], Any], given: Any) -> Any:
    if isinstance(given, tuple | list):
        return type(given)([_mapped(function, part) for part in given])
    if isinstance(given, dict):
        return {key: _mapped(function, part) for key, part in given.items()}
    return function(given)


def _is_on_device(given: Any) -> bool:
    if isinstance(given, Tensor):
        return given.is_cuda
    return isinstance(given, torch.device) and given.type == "cuda"


def _twin_generator(func: Any, kwargs: dict[str, Any]) -> torch.Generator | None:
    """A generator of the CPU that depends on the state of the one that the operation draws from."""
    given = kwargs.get("generator")
    if given is None and torch.Tag.nondeterministic_seeded not in func.tags:
        return None
    given = given or torch.cuda.default_generators[torch.cuda.current_device()]
    offset = given.get_offset() if given.device.type == "cuda" else 0
    return torch.Generator().manual_seed((given.initial_seed() * 1000003 + offset) % (1 << 62))


def _twin(given: Any, rng: torch.Generator | None) -> Any:
    """What stands on the CPU for an argument: a tensor's is one over the same memory."""
    if isinstance(given, torch.Generator):
        return rng
    if not _is_on_device(given):
        return given
    return _on_host(given) if isinstance(given, Tensor) else torch.device("cpu")


def _on_host(tensor: Tensor) -> Tensor:
    """A tensor of the CPU over the memory of one on the device."""
    storage = tensor.untyped_storage()
    shape, strides = tensor.size(), tensor.stride()
    if not tensor.numel():
        return torch.empty_strided(shape, strides, dtype=tensor.dtype)
    memory = (ctypes.c_char * storage.nbytes()).from_address(storage.data_ptr())
    numbers = torch.frombuffer(memory, dtype=tensor.dtype, count=len(memory) // tensor.itemsize)
    return numbers.as_strided(shape, strides, tensor.storage_offset())


def _with_values(found: Any, values: Any, is_asked: bool) -> Any:
    """The device's result with the CPU's values; a new one on the device where it was not asked."""
    if isinstance(values, tuple | list):
        parts = found if is_asked else [None] * len(values)
        return type(values)(
            _with_values(f, v, is_asked) for f, v in zip(parts, values, strict=True)
        )
    if not isinstance(values, Tensor):
        return values
    if not is_asked:
        found = torch.empty_strided(
            values.size(), values.stride(), dtype=values.dtype, device="cuda"
        )
    same = (found.shape, found.dtype) == (values.shape, values.dtype)
    assert same, f"{found.shape} {found.dtype} on CUDA, {values.shape} {values.dtype} on the CPU"
    memory = _on_host(found) if found.device.type == "cuda" else found
    if memory.numel() and memory.data_ptr() != values.data_ptr():
        memory.copy_(values)
    return found


def lstm(
    inputs: Tensor,
    start: tuple[Tensor, Tensor],
    weights: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """``torch.lstm`` where cuDNN would be asked, for one layer; float16 under autocast, as there.

    Source: ``_cudnn_rnn_cast_reflatten`` in PyTorch's aten/src/ATen/cudnn/AutocastRNN.cpp.
    """
    if not _is_on_device(inputs):
        return _torch_lstm(
            inputs, start, weights, has_biases, num_layers, dropout, train, bidirectional,
            batch_first,
        )  # fmt: skip
    assert (has_biases, num_layers, dropout, bidirectional) == (True, 1, 0.0, False)
    if torch.is_autocast_enabled("cuda"):
        inputs, weights = inputs.half(), [weight.half() for weight in weights]
        start = start[0].half(), start[1].half()
    weight_ih, weight_hh, *biases = weights
    hidden, cell = start[0][0], start[1][0]
    outputs = []
    with torch.autocast("cuda", enabled=False):
        for step in inputs.unbind(1 if batch_first else 0):
            gates = step @ weight_ih.t() + hidden @ weight_hh.t() + biases[0] + biases[1]
            enter, forget, new, out = gates.chunk(4, 1)
            cell = forget.sigmoid() * cell + enter.sigmoid() * new.tanh()
            hidden = out.sigmoid() * cell.tanh()
            outputs.append(hidden)
        return torch.stack(outputs, 1 if batch_first else 0), hidden[None], cell[None]


_torch_lstm = torch.lstm
