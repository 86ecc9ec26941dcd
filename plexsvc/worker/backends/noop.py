"""A backend that computes and holds nothing, for benchmarks of the path to it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from plexclient.specs import AdamW
from plexclient.wire.v1 import statemanager_pb2
from plexsvc.weights.manifests import STEPS, Scalars
from plexsvc.worker.backends.base import (
    DataShard,
    MicroBatch,
    ModelFacts,
    PassResult,
    TokenLoss,
)
from plexsvc.worker.config import WorkerConfig
from plexsvc.worker.sources import Read, TensorSource

if TYPE_CHECKING:
    import torch

    from plexsvc.statelink.client import RegionSpec


class NoopBackend:
    """Every operation succeeds at once and changes nothing."""

    def __init__(self, config: WorkerConfig) -> None:
        self._config = config
        self._is_grad_dirty = False
        self._steps = 0

    @property
    def facts(self) -> ModelFacts:
        """Return limits that no batch meets."""
        return ModelFacts(vocab_size=1 << 31, max_sequence_length=1 << 31)

    @property
    def shard(self) -> DataShard:
        """Return rank 0's place for rank 0: every other rank answers nothing."""
        return DataShard(dp_rank=0, dp_size=1, owns_results=self._config.rank == 0)

    @property
    def is_grad_dirty(self) -> bool:
        """Whether a pass came since the last step."""
        return self._is_grad_dirty

    def build(self) -> None:
        """Build nothing."""

    def regions(self) -> tuple[RegionSpec, ...]:
        """Return no regions."""
        return ()

    def attach(
        self,
        memory: Mapping[str, torch.Tensor],
        weights: TensorSource | None,
        *,
        filled: Collection[str] = (),
    ) -> None:
        """Read nothing."""
        del memory, weights, filled

    def leave(self) -> None:
        """Leave nobody."""

    def pieces(self) -> list[statemanager_pb2.CanonicalPiece]:
        """Return nothing."""
        return []

    def reseed(self, seed: int) -> None:
        """Draw nothing."""

    def forward(self, batch: Sequence[MicroBatch], *, temperature: float) -> PassResult:
        """Return zeros."""
        del temperature
        return self._zeros(batch)

    def forward_backward(
        self,
        batch: Sequence[MicroBatch],
        *,
        loss: TokenLoss,
        temperature: float,
        keep_outputs: bool,
    ) -> PassResult:
        """Return zeros."""
        del loss, temperature
        self._is_grad_dirty = True
        return self._zeros(batch) if keep_outputs else PassResult()

    def _zeros(self, batch: Sequence[MicroBatch]) -> PassResult:
        if not self.shard.owns_results:
            return PassResult()
        outputs = tuple(mb.tokens[: mb.num_tokens].float() * 0 for mb in batch)
        return PassResult(outputs=outputs)

    def plan_step(self, hyper: AdamW) -> Callable[[], dict[str, float]]:
        """Return what counts."""
        del hyper
        return self._step

    def _step(self) -> dict[str, float]:
        self._steps += 1
        self._is_grad_dirty = False
        return {"grad_norm": 0.0, "steps": float(self._steps)}

    def zero_grad(self) -> None:
        """Forget the passes."""
        self._is_grad_dirty = False

    def params_from(self, weights: TensorSource) -> list[Read]:
        """Read nothing."""
        del weights
        return []

    def moments_from(self, moments: TensorSource) -> list[Read]:
        """Read nothing."""
        del moments
        return []

    def scalars(self) -> Scalars:
        """Return the step count."""
        return {STEPS: self._steps}

    def restore_scalars(self, scalars: Mapping[str, int | float | str]) -> None:
        """Set the step count."""
        self._steps = int(scalars.get(STEPS, self._steps))
