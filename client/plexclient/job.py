"""A job: one RL run. It holds a session on the service while its `with` block runs."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Self

from plexclient import programs
from plexclient.background import Background
from plexclient.calls import call, taking
from plexclient.checks import of_type
from plexclient.declared import SEEDING, Declared
from plexclient.deployment import Deployment
from plexclient.errors import ErrorCode, PlexError, bad_request
from plexclient.ids import JobId, new_deployment_id
from plexclient.programs import Stage
from plexclient.retry import persist
from plexclient.rollouts import Rollout
from plexclient.score_call import Scoring
from plexclient.session import ENDED, Session, ended_error
from plexclient.training import Actor, Critic, Reference, Trained
from plexclient.wire.errors import from_wire
from plexclient.wire.v1 import service_pb2

CLASSES: Final[Mapping[str, type[Deployment]]] = {
    "actor": Actor,
    "critic": Critic,
    "reference": Reference,
    "rollout": Rollout,
}
MAX_REASON_CHARS: Final = 2000
WORD_S: Final = 20.0
"""How often a `deploy` that waits says what for."""

log = logging.getLogger("plexclient")


class Job:
    """Made by `cluster.job(name)`; deployments live as long as its `with` block.

    A job that `plexctl submit` registered is only joined: its end is what the controller's exit
    code says, recorded by the process that started the controller. Leaving the block then ends
    nothing, and the session is kept until the connection closes. A job whose controller died may be
    resumed: `deploy` then returns what is there, after what was in flight has ended. Its `position`
    is that of the last step, and gradients since are dropped. Any other job is created on
    entering and ended on leaving: completed, or failed when an exception leaves the block.
    """

    def __init__(
        self,
        session: Session,
        *,
        request: service_pb2.CreateJobRequest,
        is_adopted: bool,
        cache_dir: Path,
    ) -> None:
        self.name = request.name
        self.job_id = JobId(session.job_id)
        self.session = session
        self._is_adopted = is_adopted
        self._is_open = False
        self._cache_dir = cache_dir
        self._request = request
        self._deployments: dict[str, Deployment] = {}

    @property
    def background(self) -> Background:
        """The loop this job's calls run on."""
        return self.session.background

    def __enter__(self) -> Self:
        self.background.run(self._open)
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if self.background.is_own:  # a fork that leaves the block ends nothing
            self.background.run(lambda: self._close(error))

    async def __aenter__(self) -> Self:
        await asyncio.wrap_future(self.background.start(self._open))
        return self

    async def __aexit__(self, _: object, error: BaseException | None, __: object) -> None:
        if self.background.is_own:
            await asyncio.wrap_future(self.background.start(lambda: self._close(error)))

    @property
    def score(self) -> Scoring:
        """Scores of samples by a program of the reward service; call it, or use its other forms."""
        self._check_open("score")
        return Scoring(self.session)

    @call
    def reward(
        self,
        name: str,
        program: str | Path | Sequence[Stage],
        *,
        files: Sequence[str | Path] | None = None,
        timeout_s: float = 60.0,
        timeout_score: float = -1.0,
    ) -> Future[str]:
        """Register a reward program of your own for `score(name, ...)`; return its version.

        `program` is a Python file with `score(sample)`, which may take `timeout_s`, or a list of
        `Stage`s. `sample.text` is what the model wrote, `sample.reference` its reference or None,
        `sample.settings` the further keywords of `score`; the score is a finite number, or a dict
        with `score` and `detail`. `files` are further files, and directories for what is in them;
        without any, those that the stages' commands name. Programs run in a sandbox. They belong to
        the tenant and stay until removed. The same name again makes a new version; a batch keeps
        the one it began with. A sample that exceeds a limit gets `timeout_score`.

        Raises:
            PlexError: `bad_request`, `payload_too_large`.
        """
        self._check_open("reward")
        request = programs.to_wire(
            name, program, files=files, timeout_s=timeout_s, timeout_score=timeout_score
        )

        async def add() -> str:
            kept = await self.session.ask("AddProgram", request)
            return str(kept.version)

        return self.background.start(add)

    def report(self, **metrics: float) -> None:
        """Show progress figures in `plexctl status`, e.g. `report(step=3, reward=0.4)`.

        Raises:
            PlexError: `bad_request` for what is no number, a `step` that is no whole number from 0,
                or more than 64 names.
        """
        self.session.report(metrics)

    @call
    @taking(Declared)
    def deploy(self, declared: Declared) -> Future[Any]:
        """Return deployment `name`, ready: an Actor, Critic, Reference or Rollout by its role.

        `model` is a Hugging Face directory on the cluster's file system, or another deployment of
        the job, whose model it takes (weights come with `sync`). The role is `name` if that is
        one, and rollout for vllm; it must be said otherwise. Deploying a name again returns the
        same. While it waits, the logger `plexclient` says what for.

        A rollout has one engine, or so many `instances`, each over the tensor ranks of `parallel`,
        for which a node has a device; by `instances=plex.Elastic(dedicated=1,
        spot=(0, 8), serving=(0, 4))` further ones come and go, and by `plex.Elastic(shared=True)`
        it shares its devices in time with others, whose engines stay awake beside its own where
        `kv_cache_bytes` of each leave room, by `plex.Elastic(reserved=True)` with its own job's
        training; `plex.Elastic(reserved=True, dedicated=1)` has both, with a seeding window. Its
        samples are the same.

        `max_logprob_gap` above 0 makes an actor refuse a batch of a policy loss with
        `logprob_mismatch`, before any gradient is added, when a logprob of the sampler is further
        than that from the actor's own. It costs one more forward pass, and is for loops on policy:
        what is trained on after a `step` must differ.

        `durability="step"` of an actor or critic keeps a copy of its state in host memory after
        each `step`. When one of its processes dies, it is rebuilt and the loop sees a pause. Then
        `checkpoint_every=n` writes each n-th step as a checkpoint while the job trains on, and
        `keep`s the newest; `plexctl ckpt list` shows them.

        `recompute="full"` keeps only each layer's input for the backward pass, which computes the
        rest again: less memory, one more forward pass, the same gradients.
        `"selective"` computes only each layer's MLP again.

        `lora=plex.LoRA(rank=16, alpha=32)` of an actor on fsdp trains adapters in place of the
        model. `save` keeps them and their moments, and `export` writes a directory for `peft`. A
        rollout whose `model` is that actor samples with them.

        Raises:
            PlexError: `unknown_model`, `bad_request`, `no_placement`, `no_room`,
                `deployment_failed`, `operation_timeout`.
        """
        request, seeding = declared.to_wire(self.job_id), declared.seeding(self.job_id)
        self._check_open(f"deploy({declared.name!r})")
        self.session.check_open()

        async def create() -> Deployment:
            made = await self._attached(await self._deployed("CreateDeployment", request))
            if seeding is not None:
                self._made(await self._deployed("CreateDeployment", seeding))
            return made

        return self.background.start(create)

    @call
    def deploy_all(self, *declared: Declared) -> Future[list[Any]]:
        """Return all of a job's deployments, ready, in order; `plex.Declared` says what each is.

        They are placed at once: a job whose deployments do not all find devices holds none while it
        waits, so jobs that declare theirs never wait for each other in a circle. Names that are
        deployed already are only looked up.

        Raises:
            PlexError: as `deploy`; then none of those that were new is there.
        """
        for one in declared:
            of_type("deploy_all", one, Declared)
        seeding = [one.seeding(self.job_id) for one in declared]
        request = service_pb2.CreateDeploymentsRequest(
            job_id=self.job_id,
            deployments=[
                *(one.to_wire(self.job_id) for one in declared),
                *(one for one in seeding if one is not None),
            ],
        )
        self._check_open(f"deploy_all({', '.join(one.name for one in declared)})")
        self.session.check_open()

        async def create() -> list[Any]:
            made = await self._deployed("CreateDeployments", request)
            return [await self._attached(info) for info in made.deployments][: len(declared)]

        return self.background.start(create)

    @call
    def resume(self, checkpoint: str) -> Future[Any]:
        """Return a deployment that goes on from checkpoint `job/name@step`.

        `job` is an id or a name; without `@step` it is the newest. The deployment is what it was,
        under the name that it had, with the optimizer's state; `position` is what the step was
        given as such. One that this job has already, and that has done something, is only looked
        up.

        Raises:
            PlexError: `not_found`, `checkpoint_damaged`; as `deploy`.
        """
        self._check_open(f"resume({checkpoint!r})")
        self.session.check_open()

        async def go_on() -> Deployment:
            asked = service_pb2.GetCheckpointsRequest(name=checkpoint)
            (found,) = (await self.session.ask("GetCheckpoints", asked)).checkpoints
            name = found.name.partition("/")[2].partition("@")[0]
            found.spec.ClearField("model_deployment_id")  # its model's path is there
            request = service_pb2.CreateDeploymentRequest(
                deployment_id=new_deployment_id(self.job_id, name),
                job_id=self.job_id,
                name=name,
                spec=found.spec,
            )
            info = await self._deployed("CreateDeployment", request)
            made = await self._attached(info)
            if isinstance(made, Trained) and not info.applied_seq:
                made.position = json.loads(found.position or "null")
                await made.load.aio(found.name, optimizer=True, position=made.position)
            return made

        return self.background.start(go_on)

    async def _attached(self, info: service_pb2.Deployment) -> Deployment:
        """Return a deployment; drop gradients that a former controller of the job accumulated."""
        is_known = info.name in self._deployments
        made = self._made(info)
        if self.session.controller and not is_known and info.next_seq > 1:
            # Nobody reads any more what a former controller had not read.
            self.session.begin(info.deployment_id, answered=info.next_seq - 1)
            if isinstance(made, Trained) and info.spec.HasField("optimizer"):
                await made.zero_grad.aio()
        return made

    def _made(self, info: service_pb2.Deployment) -> Deployment:
        if info.HasField("error"):
            raise from_wire(info.error)
        made = CLASSES[info.spec.role](info, session=self.session, cache_dir=self._cache_dir)
        made = self._deployments.setdefault(info.name, made)  # it counts its operations: one alone
        served = self._deployments.get(info.name.removesuffix(SEEDING))
        if info.spec.seeds and isinstance(served, Rollout):
            served.seeding = made
        return made

    def _check_open(self, what: str) -> None:
        if not self._is_open:
            raise bad_request(
                f"{what} outside its job: use it inside `with cluster.job(...) as job:`"
            )

    async def _deployed(self, method: str, request: Any) -> Any:
        """Return what is deployed once it is ready; say now and then what it waits for."""
        session = self.session
        limit_s = min(WORD_S, session.options.attempt_timeout_s)

        async def ask() -> Any:
            begun_s = session.clock.monotonic_s()
            try:
                return await session.link.unary(method, request, timeout_s=limit_s)
            except PlexError:
                if session.clock.monotonic_s() - begun_s >= limit_s:
                    with suppress(PlexError):
                        asked = service_pb2.ExplainRequest(job_id=self.job_id)
                        told = await self.session.ask("ExplainOperation", asked)
                        log.warning("%s", told.text)
                raise

        retry = session.retry(
            f"{method} of job {self.job_id}",
            give_up_after_s=session.options.deploy_timeout_s,
        )
        return await persist(ask, retry=retry)

    async def _open(self) -> None:
        if not self._is_adopted or self._request.resume_id:
            job = await self.session.ask("CreateJob", self._request)
            if job.state in ENDED:
                raise ended_error(self.job_id, state=job.state, reason=job.reason)
            self.session.ttl_us, self.session.controller = job.session_ttl_us, job.controller
            self.job_id = self.session.job_id = JobId(job.job_id)
        await persist(self.session.beat, retry=self.session.retry(f"job {self.job_id}"))
        self.session.check_open()
        self.session.keep()
        self._is_open = True

    async def _close(self, error: BaseException | None) -> None:
        if not self._is_open:
            return
        self._is_open = False
        if self._is_adopted and error is not None:
            # Whoever started this controller records how it ended, or starts it again; the
            # session lives with the connection.
            await self._last_beat()
            return
        try:
            await self._last_beat()
            await self._end(error)
        finally:
            self.session.stop()  # the end may have to wait: until then the session lives

    async def _last_beat(self) -> None:
        """Send the last acknowledgements and figures; the end of the job says all the rest."""
        try:
            await self.session.beat()
        except PlexError as error:
            self.session.end(error)

    async def _end(self, error: BaseException | None) -> None:
        """End the job. A lost line must not hide the exception that leaves the block."""
        failed = error is not None
        request = service_pb2.EndJobRequest(
            job_id=self.job_id,
            outcome=service_pb2.JOB_STATE_FAILED if failed else service_pb2.JOB_STATE_COMPLETED,
            reason=f"{type(error).__name__}: {error}"[:MAX_REASON_CHARS] if failed else "",
            controller=self.session.controller,
        )
        try:
            await self.session.ask("EndJob", request)
        except PlexError as refusal:
            if error is None and refusal.code is not ErrorCode.JOB_ENDED:
                raise
            if error is not None:
                error.add_note(f"job {self.job_id} could not be ended: {refusal}")
