"""Adapters on one vLLM core: each has a seat, and vLLM's own LoRA applies them in one batch.

A seat keeps its number in vLLM for life, so that new weights of its deployment take the place of
the old between two steps. What is under way then goes on from its next token with the new ones: its
KV blocks are computed again, as after any load. What vLLM caches of a prompt is found again by seat
and version alone.

Every request has a seat, and a seat without weights has an adapter of zeros: vLLM's kernel for CPUs
would give a request without adapter the one in the last slot.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
import vllm.v1.engine.core as vllm_core
from vllm.lora.lora_model import LoRAModel
from vllm.lora.peft_helper import PEFTHelper
from vllm.lora.request import LoRARequest

from plexsvc import lora
from plexsvc.errors import bad_request
from plexsvc.ids import VersionId
from plexsvc.rollout.engines.base import MODEL
from plexsvc.rollout.engines.model_dir import ModelDir
from plexsvc.rollout.engines.vllm.stepping import label_of
from plexsvc.rollout.engines.weights import check_adapter, refuse_untaken
from plexsvc.weights.boxes import Box
from plexsvc.weights.dtypes import DTYPES
from plexsvc.weights.reading import OpenedPart, VersionReader

Core: TypeAlias = "vllm_core.EngineCore"


@dataclass(frozen=True, slots=True)
class Seat:
    """What one deployment has of an engine: the version of its adapter, and vLLM's name for it."""

    adapter: LoRARequest
    version: VersionId


def seat(number: int, version: VersionId = MODEL) -> Seat:
    """Return a seat as of a version."""
    return Seat(LoRARequest(f"seat-{number}", number, label_of(version)), version)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadAdapter:
    """A version of adapters, read: A and B by the names that PEFT gives them, and their bytes."""

    tensors: dict[str, torch.Tensor]
    rank: int
    scale: float
    nbytes: int


NOTHING = ReadAdapter(tensors={}, rank=1, scale=1.0, nbytes=0)
"""Adds nothing to any weight."""


def read(
    published: Sequence[OpenedPart], *, model: ModelDir, targets: Collection[str], max_rank: int
) -> ReadAdapter:
    """Return a published version of adapters of the linear layers that are called as `targets`.

    Raises:
        PlexError: `bad_request` for a version that holds a model, adapters of another model, or of
            a higher rank than the engine's.
    """
    reader = VersionReader(published)
    if reader.find(lora.SCALE) is None:
        raise bad_request(
            "the published version holds a whole model, and this engine is shared by adapters of "
            f"{model.path}; deploy a rollout of the deployment that published it"
        )
    read = {name: _tensor(reader, name) for name in reader.names}
    scale = float(read.pop(lora.SCALE))
    ranks = [tensor.size(0) for name, tensor in read.items() if name.endswith("lora_A.weight")]
    left = set(read)
    for name in model.tensors:
        names = lora.names_of(name)
        if name.removesuffix(".weight").rpartition(".")[2] in targets and left.issuperset(names):
            check_adapter(*(read[one] for one in names), of=name, shape=model.tensors[name].shape)
            left.difference_update(names)
    refuse_untaken(left)
    if max(ranks) > max_rank:
        raise bad_request(
            f"the published adapters have rank {max(ranks)}, and this engine takes {max_rank} at "
            "most; deploy a rollout of the deployment that published them"
        )
    nbytes = sum(tensor.numel() * tensor.element_size() for tensor in read.values())
    return ReadAdapter(tensors=read, rank=max(ranks), scale=scale, nbytes=nbytes)


def put(core: vllm_core.EngineCore, one: Seat, adapter: ReadAdapter) -> None:
    """Let a seat have an adapter in place of the one that it had. Runs between two steps."""
    core.collective_rpc(_put, args=(one.adapter.lora_int_id, adapter))
    _compute_again(core.scheduler, one)


def remove(core: vllm_core.EngineCore, one: Seat) -> None:
    """Forget a seat and what it has under way. Runs between two steps."""
    mine = [request.request_id for request in _requests(core.scheduler, one)]
    core.abort_requests(mine)
    core.collective_rpc(lambda worker: _adapters(worker).remove_adapter(one.adapter.lora_int_id))


def _adapters(worker: Any) -> Any:
    return worker.model_runner.lora_manager._adapter_manager


def _put(worker: Any, number: int, adapter: ReadAdapter) -> None:
    manager = _adapters(worker)
    if adapter.tensors:
        made = _as_vllms(manager, number, adapter, dtype=worker.model_runner.lora_config.lora_dtype)
    else:
        made = manager.create_dummy_lora(number, adapter.rank, {})  # all of it zeros
    manager.remove_adapter(number)
    manager.add_adapter(made)
    manager.activate_adapter(number)


def _as_vllms(manager: Any, number: int, adapter: ReadAdapter, *, dtype: torch.dtype) -> LoRAModel:
    mapper = getattr(manager.model, "hf_to_vllm_mapper", None)
    alpha: Any = adapter.scale * adapter.rank  # need not be whole, whatever PEFT's type says
    return LoRAModel.from_lora_tensors(
        number,
        dict(adapter.tensors),
        PEFTHelper(r=adapter.rank, lora_alpha=alpha, target_modules=[]),
        device="cpu",
        dtype=dtype,
        weights_mapper=None if mapper is None else mapper.get_rename_mapper(),
    )


def _compute_again(scheduler: Any, one: Seat) -> None:
    """Have what a seat has under way wait without KV blocks, and be known by its new version."""
    mine = _requests(scheduler, one)
    for request in reversed([running for running in scheduler.running if running in mine]):
        scheduler.running.remove(request)
        scheduler._preempt_request(request, request.arrival_time, drop_stale_output=True)
        scheduler.prev_step_scheduled_req_ids.discard(request.request_id)
    for request in mine:
        request.lora_request = one.adapter
        request.block_hashes = []
        request.update_block_hashes()


def _requests(scheduler: Any, one: Seat) -> list[Any]:
    return [
        request for request in scheduler.requests.values() if request.lora_request == one.adapter
    ]


def _tensor(reader: VersionReader, name: str) -> torch.Tensor:
    tensor = reader.find(name)
    assert tensor is not None, name
    values = torch.from_numpy(reader.read(tensor, Box.whole(tensor.shape)))
    return values.view(getattr(torch, DTYPES[tensor.dtype].torch))
