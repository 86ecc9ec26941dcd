"""Simulated rollouts of multi-turn agents beside serving engines that lend (ROSE).

Theory of operation. Trajectories take turns: their engine answers, then their environment. Every
turn is dealt by `RolloutCore`, with its session's affinity, to engines of the job's own (kind
`dedicated`) or to guests of serving engines (kind `serving`), which serve the requests of a trace
meanwhile and say by the cores of lending when the guest may step. A turn that a guest hands back
goes on elsewhere from its tokens. A step's rollout runs while the one before is trained (one step
off policy), so a step takes the longer of both. Ways to collect a step's trajectories:

- `grpo`: so many, and it ends with the last;
- `dapo`: as many groups as it takes until enough have rewards that differ; the rest is given up;
- `flow`: a new one for each that ends, without steps (fully asynchronous).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal, assert_never

import numpy as np

from benchmarks.rlboost.engine import EngineProfile
from benchmarks.rlboost.floor import DEPLOYMENT
from benchmarks.rlboost.timeline import Timeline
from benchmarks.rose.coserved import CoservedDevice, Sharing
from benchmarks.rose.stepped import Job, SteppedEngine
from benchmarks.rose.traffic import Request
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.ids import OperationId, VersionId
from plexsvc.rollout.core import events, orders
from plexsvc.rollout.core.events import InstanceId
from plexsvc.rollout.core.instances import DEDICATED, SERVING
from plexsvc.rollout.core.lending import Objectives
from plexsvc.rollout.core.machine import RolloutCore
from tests.rigs.rollout_invariants import check

KEY: Final = (0, 0)
"""Of the one sample of a turn."""
TICK_US: Final = 500_000
LIMIT_US: Final = 24 * 3_600 * 1_000_000
"""A run that takes longer has gone astray."""
Way = Literal["grpo", "dapo", "flow"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Agents:
    """Statistics of trajectories; all spreads are of logarithms."""

    turns_median: float
    turns_sigma: float
    most_turns: int
    action_median: float
    """Tokens that a turn generates."""
    agent_sigma: float
    """Of that, between trajectories."""
    turn_sigma: float
    """Of that, between turns."""
    observed_tokens: int
    """Tokens that the environment answers with."""
    first_tokens: int
    environment_us: int
    most_tokens: int
    """Of a trajectory."""

    def draw(self, seed: tuple[int, ...]) -> list[int]:
        """Return the tokens that each turn of a trajectory generates."""
        dice = np.random.default_rng(seed)
        turns = round(float(np.exp(dice.normal(np.log(self.turns_median), self.turns_sigma))))
        count = min(max(1, turns), self.most_turns)
        middle = np.log(self.action_median) + dice.normal(0, self.agent_sigma)
        drawn = np.exp(dice.normal(middle, self.turn_sigma, count)).round().astype(int).tolist()
        left, actions = self.most_tokens - self.first_tokens, []
        for tokens in drawn:
            action = max(1, min(int(tokens), left))
            actions.append(action)
            left -= action + self.observed_tokens
            if left <= 0:
                break
        return actions


@dataclass(frozen=True, slots=True, kw_only=True)
class AgenticWorkload:
    """A job of agents, and serving engines that lend to it."""

    name: str
    way: Way
    profile: EngineProfile
    """Of the job's model, on a device of its own."""
    engines: int
    """Of the job's own."""
    serving: EngineProfile
    """Of the model that is served."""
    kv_bytes: tuple[int, int]
    """Of a token of the served model's, and of the job's."""
    lenders: int
    objectives: Objectives
    fleet: int
    """Serving engines to which the traffic is dealt in turn; `lenders` of them lend."""
    agents: Agents
    group: int
    """Trajectories of one prompt."""
    batch: int
    """Trajectories of a step."""
    valid: float
    """Share of groups whose rewards differ (`dapo`)."""
    token_us: float
    """Training a token."""
    update_us: int
    pull_us: tuple[int, int]
    """Until engines of its own, and guests, have new weights."""
    steps: int


@dataclass(slots=True, kw_only=True)
class _Trajectory:
    number: int
    group: int
    actions: list[int]
    turn: int = 0
    context: int = 0
    made: int = 0
    """Tokens of the present turn."""


@dataclass(slots=True, kw_only=True)
class AgenticOutcome:
    """What a run came to."""

    sharing: Sharing
    elapsed_us: int = 0
    tokens: int = 0
    """Of trajectories that were trained."""
    rollouts_us: list[int] = field(default_factory=list)
    trajectories: int = 0
    turns: int = 0
    handed_back: int = 0
    """Turns that went on elsewhere."""


@dataclass(slots=True)
class _Seat:
    device: CoservedDevice
    pull_us: int
    kind: str
    jobs: dict[int, Job] = field(default_factory=dict)
    calls: dict[int, int] = field(default_factory=dict)


class AgenticRun(Timeline):
    """One run of a workload; `run()` once."""

    def __init__(
        self,
        work: AgenticWorkload,
        traffic: Sequence[Request],
        *,
        sharing: Sharing,
        seed: int,
    ) -> None:
        """`Sharing.ALONE` is the job on its own engines, and serving without a guest.

        Traffic is that of the whole fleet; it begins again when it ends.
        """
        super().__init__()
        self.core = RolloutCore(DEPLOYMENT, max_losses=1 << 30, max_pending=1 << 20)
        self.outcome = AgenticOutcome(sharing=sharing)
        self.lenders: list[CoservedDevice] = []
        self._work, self._traffic, self._seed = work, traffic, seed
        self._seats: dict[InstanceId, _Seat] = {}
        self._running: dict[int, _Trajectory] = {}
        self._by_turn: dict[int, _Trajectory] = {}
        """By the number of their present turn's operation."""
        self._step, self._requests = 0, 0
        self._groups: dict[int, list[_Trajectory]] = {}
        """Complete trajectories of each group of the step."""
        self._started, self._valid, self._ratio = 0, 0, 1.0
        self._began_us, self._trained_us = 0, [0, 0]
        self._is_over = False
        for _ in range(work.engines):
            self._seat(Sharing.ALONE, kind=DEDICATED.name, pull_us=work.pull_us[0])
        for _ in range(work.lenders):
            device = self._seat(sharing, kind=SERVING.name, pull_us=work.pull_us[1])
            self.lenders.append(device)

    def run(self) -> AgenticOutcome:
        """Play all steps.

        Raises:
            PlexError: `internal` if the run never ends.
        """
        for number, (one, seat) in enumerate(self._seats.items()):
            self._tell(
                events.InstanceJoined(
                    instance_id=one,
                    address=f"{seat.kind} {number}",
                    version=VersionId(),
                    checksum="",
                    kind=seat.kind,
                )
            )
        self._serve(0)
        self._begin_step()
        self.after(TICK_US, self._tick)
        while not self._is_over:
            if self.now_us > LIMIT_US:
                what = f"{self._work.name} under {self.outcome.sharing} stands still"
                raise PlexError(ErrorCode.INTERNAL, f"{what} in step {self._step}")
            self.happen()
        return self.outcome

    @property
    def devices(self) -> list[CoservedDevice]:
        """Return those that generate for the job."""
        return [seat.device for seat in self._seats.values()]

    # ---- engines

    def _seat(self, sharing: Sharing, *, kind: str, pull_us: int) -> CoservedDevice:
        """Make a device; one that does not lend is no instance."""
        work = self._work
        own = kind == DEDICATED.name
        device = CoservedDevice(
            self,
            SteppedEngine(work.serving),
            SteppedEngine(work.profile),
            work.objectives,
            work.kv_bytes,
            sharing=sharing,
        )
        if own or sharing is not Sharing.ALONE:
            one = InstanceId(len(self._seats) + 1)
            self._seats[one] = seat = _Seat(device, pull_us, kind)
            device.told = lambda jobs: self._arrived(one, jobs)
            device.lost = lambda jobs: self._handed_back(one, jobs)
            assert seat.kind == kind
        return device

    def _serve(self, index: int) -> None:
        """Have the next request arrive that one of the lenders gets."""
        count, fleet = len(self._traffic), self._work.fleet
        while index % fleet >= self._work.lenders:
            index += 1
        if not count:
            return
        round_, at = divmod(index, count)
        request = self._traffic[at]
        period_us = self._traffic[-1].at_us + 1
        due_us = round_ * period_us + request.at_us

        def come() -> None:
            self._requests += 1
            self.lenders[index % fleet].request(replace(request), self._requests)
            self._serve(index + 1)

        self.after(max(0, due_us - self.now_us), come)

    def _tick(self) -> None:
        for one, seat in self._seats.items():
            self._arrive(one, list(seat.jobs.values()))
        self._tell(events.Ticked(at_us=self.now_us))
        check(self.core)
        self.after(TICK_US, self._tick)

    # ---- the core

    def _tell(self, event: events.Event) -> None:
        for order in self.core.handle(event):
            self._perform(order)

    def _perform(self, order: orders.Order) -> None:
        match order:
            case orders.StartSamples():
                self._start(order)
            case orders.StopSamples():
                self.after(0, lambda: self._stop(order))
            case orders.AnswerSamples():
                if order.error is not None:
                    raise order.error
                number = int.from_bytes(order.operation_id, "big")
                self.after(0, lambda: self._answered(number))
            case orders.UpdateInstance():
                seat = self._seats[order.instance_id]
                self.after(seat.pull_us, lambda: self._updated(order))
            case (
                orders.RecordTokens()
                | orders.GiveUpInstance()
                | orders.SeekInstance()
                | orders.ReleaseInstance()
                | orders.EndWindow()
                | orders.LeaveDevice()
            ):
                pass  # nobody reads tokens, and no instance is lost or sleeps
            case _:
                assert_never(order)

    def _start(self, order: orders.StartSamples) -> None:
        number = int.from_bytes(order.operation_id, "big")
        trajectory = self._by_turn[number]
        known = self.core.generates[order.operation_id].samples[KEY].num_tokens
        self.outcome.handed_back += known > 0
        job = Job(
            number=number,
            prompt_tokens=trajectory.context + known,
            answer_tokens=trajectory.actions[trajectory.turn] - known,
            session=trajectory.number,
            sent=known,
            base=known,
        )
        seat = self._seats[order.instance_id]
        seat.jobs[number], seat.calls[number] = job, order.call
        self.after(0, lambda: seat.device.take(job) if number in seat.jobs else None)

    def _stop(self, order: orders.StopSamples) -> None:
        seat = self._seats[order.instance_id]
        number = int.from_bytes(order.operation_id, "big")
        job = seat.jobs.get(number)
        if job is not None:
            seat.device.guest.give_up(job)
            self._handed_back(order.instance_id, [job])

    def _updated(self, order: orders.UpdateInstance) -> None:
        self._seats[order.instance_id].device.step_began()
        self._tell(
            events.InstanceAnswered(
                instance_id=order.instance_id,
                version=order.version,
                checksum=str(order.version),
            )
        )

    def _arrived(self, one: InstanceId, jobs: Sequence[Job]) -> None:
        told = list(jobs)
        self.after(0, lambda: self._arrive(one, told))

    def _handed_back(self, one: InstanceId, jobs: Sequence[Job]) -> None:
        told = list(jobs)
        self.after(0, lambda: self._arrive(one, told, is_aborted=True))

    def _arrive(self, one: InstanceId, jobs: Sequence[Job], *, is_aborted: bool = False) -> None:
        """Tell the core what of these jobs it has not got."""
        seat = self._seats[one]
        for job in jobs:
            if seat.jobs.get(job.number) is not job:
                continue
            at, is_last = job.base + job.made, job.made >= job.answer_tokens
            if at == job.sent and not is_aborted:
                continue
            if is_last or is_aborted:
                del seat.jobs[job.number]
            arrival = events.SampleTokens(
                KEY, job.sent, at - job.sent, is_last, is_aborted and not is_last
            )
            job.sent = at
            self._tell(
                events.TokensArrived(
                    operation_id=_operation(job.number), instance_id=one, arrivals=[arrival]
                )
            )

    # ---- trajectories

    def _begin_step(self) -> None:
        self._step += 1
        self._began_us, self._groups, self._valid, self._started = self.now_us, {}, 0, 0
        self._tell(events.VersionWanted(version=VersionId("job/actor", 1, self._step)))
        groups = self._work.batch // self._work.group
        self._launch(round(groups * (self._ratio if self._work.way == "dapo" else 1)))

    def _launch(self, groups: int) -> None:
        for _ in range(max(1, groups)):
            self._started += 1
            for member in range(self._work.group):
                self._new(self._started, member)

    def _new(self, group: int, member: int) -> None:
        self.outcome.trajectories += 1
        number = self.outcome.trajectories
        actions = self._work.agents.draw((self._seed, self._step, group, member))
        one = _Trajectory(
            number=number, group=group, actions=actions, context=self._work.agents.first_tokens
        )
        self._running[number] = one
        self._take_turn(one)

    def _take_turn(self, one: _Trajectory) -> None:
        if one.number not in self._running:
            return
        self.outcome.turns += 1
        number = self.outcome.turns
        self._by_turn[number] = one
        self._tell(
            events.SamplesSubmitted(
                operation_id=_operation(number),
                samples={KEY: 0},
                prompt_tokens=(one.context,),
                is_turn=True,
                session=str(one.number),
            )
        )

    def _answered(self, number: int) -> None:
        """Go on with the environment's answer, or note that a trajectory is complete."""
        one = self._by_turn.pop(number, None)
        if one is None or one.number not in self._running:
            return
        one.context += one.actions[one.turn]
        one.turn += 1
        if one.turn < len(one.actions):
            one.context += self._work.agents.observed_tokens
            self.after(self._work.agents.environment_us, lambda: self._take_turn(one))
            return
        del self._running[one.number]
        self._groups.setdefault(one.group, []).append(one)
        self._look(one)

    def _look(self, last: _Trajectory) -> None:
        """End the step if it has what it needs."""
        work = self._work
        groups = work.batch // work.group
        if work.way == "flow":
            self._flow(last)
            return
        if work.way == "dapo" and len(self._groups[last.group]) == work.group:
            dice = np.random.default_rng((self._seed, self._step, last.group, 7))
            is_valid = dice.random() < work.valid
            self._valid += is_valid
            if not is_valid:
                self._groups[last.group] = []
            if self._valid < groups:
                if not self._running:
                    self._launch(round((groups - self._valid) / work.valid))
                return
            self._ratio = max(1.0, self._started / groups)
        elif self._running:
            return
        full = [them for them in self._groups.values() if len(them) == work.group][:groups]
        self._end_step([one for them in full for one in them])

    def _end_step(self, trained: Sequence[_Trajectory]) -> None:
        """Train, and begin the next rollout once the step before is trained."""
        for number in [n for n, one in self._by_turn.items() if one.number in self._running]:
            self._give_up(number)
        self._running.clear()
        tokens = sum(one.context for one in trained)
        self.outcome.tokens += tokens
        self.outcome.rollouts_us.append(self.now_us - self._began_us)
        took_us = round(tokens * self._work.token_us) + self._work.update_us
        before_us = self._trained_us[-1]
        self._trained_us.append(max(self.now_us, before_us) + took_us)
        next_us = max(self.now_us, before_us)
        if self._step == self._work.steps:
            self.outcome.elapsed_us = max(next_us, before_us)
            self.after(max(0, next_us - self.now_us), self._stop_all)
        else:
            self.after(next_us - self.now_us, self._begin_step)

    def _flow(self, last: _Trajectory) -> None:
        """Take another trajectory on for one that ended, until there were enough."""
        self.outcome.tokens += last.context
        if sum(map(len, self._groups.values())) >= self._work.steps * self._work.batch:
            trained_us = round(self.outcome.tokens * self._work.token_us)
            self.outcome.elapsed_us = max(self.now_us, trained_us)
            self.outcome.rollouts_us.append(self.now_us)
            self._stop_all()
            return
        self._started += 1
        self._new(self._started, 0)

    def _stop_all(self) -> None:
        self._is_over = True

    def _give_up(self, number: int) -> None:
        del self._by_turn[number]
        for seat in self._seats.values():
            job = seat.jobs.pop(number, None)
            if job is not None:
                seat.device.guest.give_up(job)
        self._tell(events.OperationEnded(operation_id=_operation(number)))


def _operation(number: int) -> OperationId:
    return OperationId(number.to_bytes(16, "big"))
