"""Operations on a rank's backend, by kind, and the accumulation window they share.

Theory of operation. The window is clean, open (gradients accumulated) or broken. An operation is
first prepared: whatever can be refused is refused then, its inputs are opened and checked, and room
for its answer is reserved. Then it is run. One that fails while it runs may have changed gradients
or parameters and breaks the window: forward_backward, backward and step are refused with
`window_broken` until zero_grad or a load.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import torch

from plexclient.specs import AdamW
from plexclient.wire import tensors
from plexclient.wire.v1 import common_pb2, operations_pb2, statemanager_pb2
from plexclient.wire.v1.statemanager_pb2 import PublishedVersion, VersionHolder
from plexsvc import lora
from plexsvc.batches import arrays_of, check_arrays, rules_of
from plexsvc.errors import ErrorCode, PlexError, bad_batch, bad_request, unavailable
from plexsvc.ids import VersionId
from plexsvc.statelink.client import ExportReport, Region, RegionSpec
from plexsvc.weights import manifests, object_store
from plexsvc.weights.checksums import verify
from plexsvc.weights.reading import OpenedPart, OpenedVersion
from plexsvc.worker import batches, losses, results, sources
from plexsvc.worker.backends.base import Backend, MicroBatch, PassResult, TokenLoss
from plexsvc.worker.config import WorkerConfig
from plexsvc.worker.results import RankAnswer, Room

Operation = operations_pb2.Operation
Write = Callable[[], RankAnswer]
"""Writes weights and returns the answer; an error in it leaves them half written."""

Run = Callable[[], RankAnswer | Write]
"""What is left of a prepared operation. It writes no weight, but may return what does."""


@dataclass(frozen=True, slots=True)
class CheckingPass:
    """A prepared operation whose ranks must first make a pass together that changes nothing.

    `look` raises a `PlexError` to refuse the operation after all.
    """

    look: Callable[[], None]
    run: Run


Prepared = Run | CheckingPass

WINDOW_KINDS: Final = frozenset({"forward_backward", "backward", "step"})
"""Kinds that a broken window refuses."""

CHANGES: Final = WINDOW_KINDS | {"zero_grad", "load", "pull"}
"""Kinds that break the window when they fail while they run."""


class StateMemory(results.ResultStaging, Protocol):
    """What a rank uses of `plexsvc.statelink.client.StateClient`."""

    def allocate(self, regions: Sequence[RegionSpec]) -> dict[str, Region]:
        """Return zeroed device memory, all or nothing."""

    @property
    def is_parked(self) -> bool:
        """Whether this rank's device memory is taken away."""

    def stepped(self, report: ExportReport) -> None:
        """Say what an operation left that ran on parked state."""

    def seal(self, name: str) -> None:
        """Let others read a shared region that is filled."""

    def set_index(self, pieces: Sequence[statemanager_pb2.CanonicalPiece]) -> None:
        """Say where each canonical piece lies."""

    def open_staged(self, staging_id: bytes) -> tuple[list[common_pb2.TensorSpec], memoryview]:
        """Return a staged bundle, read-only."""

    def open_version(self, version: VersionId) -> OpenedPart:
        """Return this node's part of a published version, read-only."""

    def fetch_version(self, version: PublishedVersion, holder: VersionHolder) -> OpenedPart:
        """Return another node's part of one, read-only."""


class RankOperations:
    """Prepares operations of one rank, and knows what those that failed left behind."""

    def __init__(self, config: WorkerConfig, backend: Backend, memory: StateMemory | None) -> None:
        self._config = config
        self._backend = backend
        self._memory = memory
        self._broken_by: str | None = None
        self._regions: dict[str, torch.Tensor] = {}
        self._oldest = torch.ones((), requires_grad=True) * 1
        self.is_initialized = False
        self.carried_seq = 0
        """Last number applied by the WPG whose state this rank started from."""

    def prepare(
        self, operation: Operation, published: PublishedVersion, *, held: ExitStack
    ) -> Prepared:
        """Check an operation completely and return what runs it; nothing has changed then.

        `held` keeps what it opened until it has run.

        Raises:
            PlexError: the operation is refused.
        """
        kind = operation.WhichOneof("body")
        if kind != "initialize" and not self.is_initialized:
            raise bad_request(f"{kind} came before initialize on {self._config.wpg_id}")
        if kind in WINDOW_KINDS and self._broken_by is not None:
            raise PlexError(
                ErrorCode.WINDOW_BROKEN,
                f"{kind} refused: {self._broken_by}. Call zero_grad and send the window's batches "
                "again",
            )
        match kind:
            case "noop":
                return RankAnswer
            case "initialize":
                return self._initialize(published)
            case "forward":
                return self._forward(operation, held)
            case "forward_backward" | "backward":
                return self._train(operation, held)
            case "step":
                return self._step(operation.step)
            case "zero_grad":
                self._check_trains("zero_grad")
                return lambda: self._zero_grad
            case "load":
                return self._load(operation.load, held, tenant=operation.tenant)
            case "pull":
                return self._pull(operation.pull, published, held)
            case _:
                raise bad_request(f"{kind or 'an empty operation'} does not run on a training rank")

    def broken(self, kind: str | None, error: Exception) -> None:
        """Note that an operation failed while it ran: if it can change anything, it may have."""
        if kind in CHANGES:
            self._broken_by = f"an earlier {kind} failed ({error})"

    def start_over(self, leave: Callable[[], None]) -> None:
        """Build the model and its groups anew over the regions, which hold all of the state.

        What a failed pass left in the model, in the device's memory and between the ranks is gone.
        All ranks of the group do it, each once it has let go of the groups and called `leave`.

        Raises:
            PlexError: `unavailable` when the ranks do not meet again.
        """
        scalars = self._backend.scalars()
        self._backend.leave()
        # A backward pass that failed left nodes of its graph, and so the model, in the queue of
        # this thread's autograd engine. It takes the newest first: the oldest comes after them.
        self._oldest.backward(retain_graph=True)
        leave()
        torch.cuda.empty_cache()
        self._backend.build()
        if self._regions:
            self._backend.attach(self._regions, None)
        self._backend.restore_scalars(scalars)

    def _initialize(self, copies: PublishedVersion) -> Run:
        if self.is_initialized:
            raise bad_request(f"{self._config.wpg_id} is initialized already")

        def run() -> RankAnswer:
            specs = self._backend.regions()
            if copies.holders:
                self._start_from(copies, specs)
            elif specs:
                with sources.open_checkpoint(Path(self._config.model)) as weights:
                    self._fill(specs, weights)
            # Without state it is on its device nevertheless, as the ledger sees it.
            elif self._memory is not None:
                self._memory.allocate(())
            if self._memory is not None:
                self._memory.set_index(self._backend.pieces() if specs else ())
            self.is_initialized = True
            return RankAnswer()

        return run

    def _start_from(self, copies: PublishedVersion, specs: Sequence[RegionSpec]) -> None:
        """Take over another WPG's whole state from its complete copies.

        No view of a copy outlives this: its holder frees it when it is told of the last.
        """
        with self._opened(copies) as version:
            weights = sources.VersionTensors(version.parts)
            self._fill(specs, weights)
            if specs and self._config.has_optimizer:
                sources.copy(self._backend.moments_from(weights))
            known = manifests.scalars_by_rank(version.manifests)
            mine = known.get(self._config.rank)  # all ranks count alike
            self._backend.restore_scalars(mine or next(iter(known.values()), {}))
            self.carried_seq = manifests.applied_seq(version.manifests)

    def _fill(self, specs: Sequence[RegionSpec], weights: sources.TensorSource) -> None:
        """Give the backend its memory and its weights."""
        regions = self._state_memory().allocate(specs)
        if specs:
            self._regions = {name: region.tensor() for name, region in regions.items()}
            filled = {name for name, region in regions.items() if region.is_read_only}
            self._backend.attach(self._regions, weights, filled=filled)
            for spec in specs:
                if spec.shared and spec.name not in filled:
                    self._state_memory().seal(spec.name)
            torch.cuda.empty_cache()  # what moved into the regions must not stay beside them

    def _forward(self, operation: Operation, held: ExitStack) -> Run:
        batch = self._batch(operation, held)
        temperature = operation.forward.temperature or 1.0
        room = self._room(batch, held)
        return lambda: self._pass_answer(
            self._backend.forward(batch, temperature=temperature), batch, room
        )

    def _train(self, operation: Operation, held: ExitStack) -> Prepared:
        loss: TokenLoss = losses.given_gradient
        keep_outputs = False
        body: operations_pb2.ForwardBackward | operations_pb2.Backward = operation.backward
        if operation.HasField("forward_backward"):
            body = operation.forward_backward
            loss = losses.resolve(body.loss, body.loss_args, role=self._config.role)
            keep_outputs = body.return_logprobs
        self._check_trains(str(operation.WhichOneof("body")))
        batch = self._batch(operation, held)
        room = self._room(batch, held) if keep_outputs else None
        temperature = body.temperature or 1.0

        def run() -> RankAnswer:
            found = self._backend.forward_backward(
                batch, loss=loss, temperature=temperature, keep_outputs=keep_outputs
            )
            return self._pass_answer(found, batch, room)

        if self._config.max_logprob_gap > 0 and "logprobs" in batch[0].arrays:
            return CheckingPass(lambda: self._check_gap(batch, temperature=temperature), run)
        return run

    def _check_gap(self, batch: Sequence[MicroBatch], *, temperature: float) -> None:
        """Refuse a batch that was not sampled from this policy."""
        outputs = self._backend.forward(batch, temperature=temperature).outputs
        gaps = [losses.largest_gap(*pair) for pair in zip(outputs, batch, strict=False)]
        gap, limit = max(gaps, default=0.0), self._config.max_logprob_gap
        if gap > limit:
            raise PlexError(
                ErrorCode.LOGPROB_MISMATCH,
                f"a logprob of the sampler is {gap:.2e} from this policy's, and max_logprob_gap is "
                f"{limit:.2e}; no gradient was added. Sync the rollout before it generates, and "
                f"train at the temperature of its samples (this was {temperature:g})",
                gap=gap,
            )

    def _step(self, body: operations_pb2.Step) -> Run:
        self._check_trains("step")
        if self._config.steps_on_host and not self._state_memory().is_parked:
            raise bad_request(
                f"step on the host was asked of {self._config.wpg_id} while it is on its device; "
                "it works on parked state"
            )
        given = {field.name: value for field, value in body.ListFields()}
        hyper = replace(self._config.optimizer or AdamW(lr=0.0), **given)

        def run() -> Write:
            apply = self._backend.plan_step(hyper)
            return lambda: self._metrics({**apply(), "lr": hyper.lr})

        return run

    def _zero_grad(self) -> RankAnswer:
        self._backend.zero_grad()
        self._broken_by = None
        return RankAnswer()

    def _load(self, body: operations_pb2.Load, held: ExitStack, *, tenant: str) -> Run:
        opened = object_store.opened(body.path, body.root, tenant=tenant)
        directory, seal = held.enter_context(opened)
        scalars: dict[str, int | float | str] = {}
        pattern = sources.MODEL
        if self._config.lora is not None:
            pattern = lora.WEIGHTS_FILE
            lora.check_checkpoint(directory, self._config.lora, base=self._config.base)
        weights = sources.open_checkpoint(directory, pattern=pattern, seal=seal)
        reads = self._backend.params_from(held.enter_context(weights))
        if body.optimizer:
            self._check_trains("load with optimizer=True")
            scalars = sources.read_scalars(directory)
            pattern = "optimizer*.safetensors"
            moments = sources.open_checkpoint(directory, pattern=pattern, seal=seal)
            reads += self._backend.moments_from(held.enter_context(moments))
        sources.check_finite(reads)  # read twice: once copying has begun, nothing can be refused

        def run() -> RankAnswer:
            sources.copy(reads)
            self._backend.restore_scalars(scalars)
            return self._zero_grad() if self._config.has_optimizer else RankAnswer()

        return lambda: run

    def _pull(self, body: operations_pb2.Pull, published: PublishedVersion, held: ExitStack) -> Run:
        if not published.holders:
            raise unavailable(
                f"version {body.version} of {body.source_deployment_id} is on no node; publish it "
                "again"
            )
        version = held.enter_context(self._opened(published))
        reads = self._backend.params_from(sources.VersionTensors(version.parts))

        def run() -> RankAnswer:
            sources.copy(reads)
            reads.clear()  # they hold views of the version, which the caller closes
            return RankAnswer(weight_version=published.version)

        return lambda: run

    # -- helpers -------------------------------------------------------------------------------

    def _check_trains(self, kind: str) -> None:
        if self._config.backend != "noop" and not self._config.has_optimizer:
            raise bad_request(
                f"{kind} refused: {self._config.deployment_id} (role {self._config.role!r}) "
                "has no optimizer; deploy an actor or critic with "
                "optimizer=AdamW(...) to train"
            )

    def _batch(self, operation: Operation, held: ExitStack) -> list[MicroBatch]:
        arrays = self._arrays(operation.payload, held)
        names = arrays_of(operation, role=self._config.role)
        check_arrays(arrays, rules_of(self._backend.facts, names))
        return batches.split(arrays, operation.plan, names=names, shard=self._backend.shard)

    def _arrays(
        self, payload: common_pb2.Payload, held: ExitStack
    ) -> Mapping[str, npt.NDArray[Any]]:
        """Return the inputs, which are what the client sent.

        Raises:
            PlexError: `checksum_mismatch`: a copy in staging memory is dropped then, once no rank
                opens it any more, so that the client's next upload replaces it. `unavailable` when
                it is not on this node.
        """
        if payload.WhichOneof("form") == "inline":
            tensors.verify(payload, payload.inline.data, what="the batch")
            return tensors.decode(payload.inline)
        if payload.WhichOneof("form") != "staged":
            raise bad_batch("the operation carries no batch; send one")
        staging, staging_id = self._state_memory(), payload.staged.staging_id
        try:
            specs, memory = staging.open_staged(staging_id)
        except PlexError as error:
            if error.code is not ErrorCode.NOT_FOUND:
                raise
            raise unavailable(f"{error.message}; send it again") from error
        try:
            tensors.verify(payload, memory, what="the batch on the node")
        except PlexError:
            held.callback(results.give_back, staging, staging_id)
            raise
        return tensors.views(specs, memory)

    def _room(self, batch: list[MicroBatch], held: ExitStack) -> Room | None:
        """Reserve room for a pass's outputs, where this rank answers any."""
        num_tokens = sum(micro.num_tokens for micro in batch)
        if not (self._backend.shard.owns_results and num_tokens):
            return None
        name = "values" if self._config.role == "critic" else "logprobs"
        room = Room(name, num_tokens=num_tokens, staging=self._memory)
        held.callback(room.drop)  # unless it was filled
        return room

    def _pass_answer(
        self, found: PassResult, batch: list[MicroBatch], room: Room | None
    ) -> RankAnswer:
        if not self._backend.shard.owns_results:
            return RankAnswer()
        answer = self._metrics(losses.metrics(found.sums, found.maxima))
        if room is None:
            return answer
        flat = torch.cat([output.float().cpu() for output in found.outputs]).numpy()
        values = np.ascontiguousarray(flat)
        return replace(
            answer,
            name=room.name,
            values=values,
            payload=room.fill(values, node_id=self._config.node_id),
            sequences=[s for micro in batch for s in micro.sequences],
        )

    def _metrics(self, found: Mapping[str, float]) -> RankAnswer:
        """Return metrics from the one rank that reports them: sums over all ranks already."""
        shard = self._backend.shard
        reports = shard.owns_results and shard.dp_rank == 0
        return RankAnswer(metrics=found if reports else {})

    @contextmanager
    def _opened(self, published: PublishedVersion) -> Iterator[OpenedVersion]:
        """Open a version and verify what was opened; no view of it may outlive the block."""
        from plexsvc.statelink.opening import VersionOpener

        opener = VersionOpener(self._config, here=self._state_memory())
        with closing(opener):
            version = opener.open(published)
            for part in version.parts:
                verify(part.manifest, part.data)
            yield version

    def _state_memory(self) -> StateMemory:
        if self._memory is None:
            raise bad_request(f"{self._config.wpg_id} has no state manager (data_socket is empty)")
        return self._memory


def operation_seed(seed: int, seq: int) -> int:
    """Return the seed of operation `seq`: 62 bits of a hash of (deployment seed, seq)."""
    data = hashlib.sha256(f"{seed}/{seq}".encode()).digest()
    return int.from_bytes(data[:8], "little") >> 2
