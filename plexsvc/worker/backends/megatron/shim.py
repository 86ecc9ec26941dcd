"""Shim that runs megatron-core without CUDA; it touches only `megatron.*` modules.

Megatron names `torch.cuda` everywhere. Each `megatron.*` module, whenever it is imported, gets a
stand-in for the global `torch`: torch's own names, with the CUDA ones answered for the CPU.
Patching torch itself would break meta-device construction elsewhere in silence. With CUDA present
nothing happens.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.abc
import importlib.machinery
import logging
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any, Final, Self

import torch

_CPU: Final = torch.device("cpu")
_FACTORIES: Final = ("tensor", "zeros", "ones", "empty", "full", "arange", "rand", "randn")
_PREFIX: Final = "megatron."


def install() -> None:
    """Make later imports of `megatron.*` run on the CPU; safe to repeat.

    Must come before the first import of megatron-core.
    """
    if torch.cuda.is_available() or any(isinstance(f, _Finder) for f in sys.meta_path):
        return
    early = [name for name in sys.modules if name.startswith(_PREFIX + "core")]
    assert not early, f"install() must precede the import of {early[:3]}"
    _teach_tensors()
    sys.meta_path.insert(0, _Finder(_make_torch()))


class _NullStream:
    """A CUDA stream or event where there is none: everything has already happened."""

    def __init__(self, *_args: object, **_kwargs: object) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        pass

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _NullStream)

    def __hash__(self) -> int:
        return 1

    def record_event(self, *_args: object) -> _NullStream:
        """Return an event that has happened."""
        return self

    def query(self) -> bool:
        """Return True: nothing is pending."""
        return True

    def elapsed_time(self, _other: object) -> float:
        """Return 0."""
        return 0.0

    def synchronize(self, *_args: object) -> None:
        """Return at once."""

    wait = wait_stream = wait_event = record = synchronize


def _make_cuda() -> types.ModuleType:
    cuda: Any = types.ModuleType("torch.cuda for the CPU")
    cuda.__dict__.update(torch.cuda.__dict__)
    null = _NullStream()
    cuda.current_device = lambda: _CPU
    cuda.Stream = cuda.Event = _NullStream
    cuda.current_stream = cuda.default_stream = lambda *_a, **_k: null
    cuda.stream = lambda _stream=None: contextlib.nullcontext()
    cuda.set_device = cuda.synchronize = cuda.empty_cache = lambda *_a, **_k: None
    cuda.nvtx = types.SimpleNamespace(
        range_push=lambda *_a, **_k: None, range_pop=lambda *_a, **_k: None
    )
    cuda.manual_seed = torch.default_generator.manual_seed
    cuda.get_rng_state = lambda *_a, **_k: torch.get_rng_state()
    cuda.set_rng_state = lambda state, *_a, **_k: torch.set_rng_state(state)
    module: types.ModuleType = cuda
    return module


def _make_torch() -> types.ModuleType:
    stand_in = types.ModuleType("torch for the CPU")
    stand_in.__dict__.update(torch.__dict__)
    stand_in.__dict__["cuda"] = _make_cuda()
    for name in _FACTORIES:
        stand_in.__dict__[name] = _on_cpu(getattr(torch, name))
    return stand_in


def _on_cpu(factory: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(factory)
    def make(*args: Any, **kwargs: Any) -> Any:
        if "cuda" in str(kwargs.get("device")):
            kwargs["device"] = _CPU
        kwargs.pop("pin_memory", None)
        return factory(*args, **kwargs)

    return make


def _called_by_megatron() -> bool:
    caller = sys._getframe(2)
    return str(caller.f_globals.get("__name__", "")).startswith(_PREFIX)


def _teach_tensors() -> None:
    """Answer `.cuda()` and compare `.type()` as Megatron expects, for calls from Megatron only."""
    real_cuda, real_type = torch.Tensor.cuda, torch.Tensor.type

    def cuda(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self if _called_by_megatron() else real_cuda(self, *args, **kwargs)

    def type_(self: Any, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
        if dtype is not None:
            return real_type(self, dtype, *args, **kwargs)
        name = real_type(self)
        return name.replace("torch.", "torch.cuda.", 1) if _called_by_megatron() else name

    torch.Tensor.cuda, torch.Tensor.type = cuda, type_


class _Finder(importlib.abc.MetaPathFinder):
    """Rebinds `torch` in every `megatron.*` module right after it ran."""

    def __init__(self, stand_in: types.ModuleType) -> None:
        self._torch = stand_in

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: types.ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the ordinary spec, with a loader that adapts the module it loads."""
        if not fullname.startswith(_PREFIX):
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            self._adapt(spec.loader)
        return spec

    def _adapt(self, loader: Any) -> None:
        execute = loader.exec_module

        def exec_module(module: types.ModuleType) -> None:
            execute(module)
            if module.__dict__.get("torch") is torch:
                module.__dict__["torch"] = self._torch
            fix = _FIXES.get(module.__name__)
            if fix is not None:
                fix(module)

        loader.exec_module = exec_module


def _fix_random(module: Any) -> None:
    module._get_cuda_rng_state = lambda *_a, **_k: torch.get_rng_state()
    module._set_cuda_rng_state = lambda state, *_a, **_k: torch.set_rng_state(state)
    logging.getLogger(module.__name__).setLevel(logging.ERROR)  # it warns of CPU generator changes


def _fix_moe(module: Any) -> None:
    if not hasattr(module, "te_general_gemm"):  # 0.16.1 names it without Transformer Engine
        module.te_general_gemm = None
    module.maybe_move_tensor_to_cpu = _move_to_cpu


def _move_to_cpu(value: Any, *, as_numpy: bool = False, record_stream: bool = False) -> Any:
    del record_stream
    return value.numpy() if as_numpy and torch.is_tensor(value) else value


_FIXES: Final[dict[str, Callable[[Any], None]]] = {
    "megatron.core.jit": lambda module: module.disable_jit_fuser(),  # which is torch.compile
    "megatron.core.tensor_parallel.random": _fix_random,
    "megatron.core.transformer.moe.moe_utils": _fix_moe,
}
