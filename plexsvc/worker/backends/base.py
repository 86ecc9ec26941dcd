"""Protocol of training backends, and the values that cross it.

Life of a backend: `build` (host memory only) → `attach` (its tensors move into the rank's regions
and the model's weights are read) → any number of passes and steps. Between operations the regions
may be taken away and brought back at the same addresses, so a backend keeps nothing of a job's
state outside its regions but the `scalars`. Everything is called on one thread. When a pass
or a step fails, `leave`, `build` and `attach` without weights begin anew over the same regions.
"""

# T = packed tokens of a micro-batch, B = sequences in it.

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from plexclient.specs import AdamW
from plexclient.wire.v1 import statemanager_pb2
from plexsvc.weights.manifests import Scalars
from plexsvc.worker.sources import Read, TensorSource

if TYPE_CHECKING:
    import torch

    from plexsvc.statelink.client import RegionSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """Some sequences of a batch, packed, plus padding that weighs nothing.

    The last `padded_tokens` tokens are one extra sequence: its per-token weights are zero and what
    is computed for it is dropped.
    """

    tokens: torch.Tensor
    """int64[T]."""
    cu_seqlens: torch.Tensor
    """int32[B+1], padding's sequence included."""
    arrays: Mapping[str, torch.Tensor]
    """Per-token inputs of the loss, [T]: float32, `target_tokens` int64; and `cu_seqlens`."""
    sequences: tuple[int, ...]
    """Indices into the batch, padding's sequence excluded."""
    padded_tokens: int = 0

    @property
    def num_tokens(self) -> int:
        """Tokens that count: padding excluded."""
        return int(self.tokens.shape[0]) - self.padded_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class LossTerms:
    """What a loss makes of one micro-batch: a differentiable sum, and what to report.

    Over micro-batches and replicas, `sums` are added and of `maxima`, none below 0, the largest is
    taken.
    """

    loss: torch.Tensor
    sums: Mapping[str, torch.Tensor]
    maxima: Mapping[str, torch.Tensor] = field(default_factory=dict)


TokenLoss = Callable[["torch.Tensor", Mapping[str, "torch.Tensor"]], LossTerms]
"""From `outputs[T]` (logprobs, or a critic's values) and the micro-batch's arrays to its terms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassResult:
    """What a pass over this rank's micro-batches answered.

    `outputs` (float32, one a micro-batch, padding dropped) are there only where `owns_results`;
    `sums` and `maxima` are already taken over data-parallel ranks, and empty on all but the last
    pipeline stage.
    """

    outputs: tuple[torch.Tensor, ...] = ()
    sums: Mapping[str, float] = field(default_factory=dict)
    maxima: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """What callers must know to make a batch the model takes."""

    vocab_size: int
    max_sequence_length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DataShard:
    """This rank's place in the data-parallel split, and whether it answers for it."""

    dp_rank: int
    dp_size: int
    owns_results: bool
    """Whether this rank answers for its data-parallel rank (tensor rank 0, last stage)."""
    token_multiple: int = 1
    """Micro-batches are padded to a multiple of this many tokens (sequence parallelism)."""


class Backend(Protocol):
    """One rank of a model on some training framework."""

    @property
    def facts(self) -> ModelFacts:
        """Return the model's limits; known after `build`."""
        ...

    @property
    def shard(self) -> DataShard:
        """Return this rank's place; known after `build`."""
        ...

    @property
    def is_grad_dirty(self) -> bool:
        """Whether gradients were accumulated since the last `step` or `zero_grad`."""
        ...

    def build(self) -> None:
        """Join the ranks' process group and build the model in host memory, uninitialised.

        Raises:
            PlexError: `unknown_model` for a directory that holds no model this backend knows.
        """
        ...

    def regions(self) -> tuple[RegionSpec, ...]:
        """Return the device memory this rank needs for its whole life; known after `build`."""
        ...

    def attach(
        self,
        memory: Mapping[str, torch.Tensor],
        weights: TensorSource | None,
        *,
        filled: Collection[str] = (),
    ) -> None:
        """Move every state tensor into `memory` (zeroed uint8 regions) and read `weights`.

        None: `memory` holds the state, of which no byte changes. So do the `filled` shared regions.
        """
        ...

    def leave(self) -> None:
        """Let go of the model and of every group of ranks; only `build` may follow."""
        ...

    def pieces(self) -> list[statemanager_pb2.CanonicalPiece]:
        """Return where every state tensor lies, by canonical key; known after `attach`."""
        ...

    def reseed(self, seed: int) -> None:
        """Set every random generator of this rank from `seed`."""
        ...

    def forward(self, batch: Sequence[MicroBatch], *, temperature: float) -> PassResult:
        """Return logprobs of `target_tokens` (a critic: values). Leaves no gradients."""
        ...

    def forward_backward(
        self,
        batch: Sequence[MicroBatch],
        *,
        loss: TokenLoss,
        temperature: float,
        keep_outputs: bool,
    ) -> PassResult:
        """Accumulate the gradients of `loss`, summed over `batch` and data-parallel ranks."""
        ...

    def plan_step(self, hyper: AdamW) -> Callable[[], dict[str, float]]:
        """Reduce and clip the gradients; return what applies and clears them, and gives metrics.

        All that can fail is done here: what is returned allocates nothing, and all ranks call it
        once all have theirs. They may exchange parameters in it: a rank that dies meanwhile ends
        the group. Metrics are `grad_norm` and `steps`.

        Raises:
            PlexError: `window_broken` when the gradients are not finite, on all ranks alike.
        """
        ...

    def zero_grad(self) -> None:
        """Clear the gradients."""
        ...

    def params_from(self, weights: TensorSource) -> list[Read]:
        """Return what overwrites the parameters (and masters), once `weights` has all of it.

        A critic's head that `weights` lacks is kept. Nothing is copied yet.

        Raises:
            PlexError: as `TensorSource.check`.
        """
        ...

    def moments_from(self, moments: TensorSource) -> list[Read]:
        """Return what overwrites the optimizer's moments, once `moments` has all of it.

        Names are `exp_avg/<name>`, `exp_avg_sq/<name>` and, where there are any, `master/<name>`:
        they overwrite the masters, or the parameters that are their own masters.

        Raises:
            PlexError: as `TensorSource.check`.
        """
        ...

    def scalars(self) -> Scalars:
        """Return the state that lies in no region, e.g. the optimizer's step count."""
        ...

    def restore_scalars(self, scalars: Mapping[str, int | float | str]) -> None:
        """Take back what `scalars` returned; unknown names are ignored."""
        ...
