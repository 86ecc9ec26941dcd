"""Simulated generates that are planned by expected lengths (RLHFless), on instances paid by time.

Every step of an epoch starts instances, deals its prompts to them, and pays each until it is let
go. What is planned, and with what, are switches of a policy. `RolloutCore` deals and cuts, with
`LengthHistory` and `choose_plan` of the same room; this driver starts and stops engines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final

import numpy as np

from plexsvc.rollout.core import events
from plexsvc.rollout.core.events import SampleKey
from plexsvc.rollout.core.instances import SPOT
from plexsvc.rollout.core.lengths import LengthHistory
from plexsvc.rollout.core.machine import RolloutCore
from plexsvc.rollout.core.planning import choose_plan
from plexsvc.sim.rollout.engine import Engine, EngineProfile
from plexsvc.sim.rollout.floor import DEPLOYMENT, Floor, Unit
from plexsvc.sim.rollout.workload import LengthModel

CUT: Final = 0.95
"""Share of an instance's samples after which the rest goes elsewhere (tau). At the paper's 0.7
five times as many move: it costs less and takes a fifth longer (`benchmarks-rollout.md`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class References:
    """Lengths of the data set's own answers, which resemble those of the model."""

    slope: float
    """Of their logarithm by that of the prompt's part of the model's."""
    sigma: float
    """Of what is left of their logarithm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedWorkload:
    """Epochs of a data set."""

    name: str
    profile: EngineProfile
    lengths: LengthModel
    references: References
    prompts: int
    """Of a step."""
    samples: int
    prompt_tokens: int
    steps: int
    """Of an epoch."""
    epochs: int
    instances: int
    """Without a plan."""
    most_instances: int
    start_us: int
    """Until an instance that is started has the weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanPolicy:
    """What is planned."""

    name: str
    shares_prompts: bool = False
    """Samples of one prompt are prefilled once."""
    ranks: bool = False
    """Prompts of like expected length go to one instance."""
    cuts: bool = False
    """An instance whose samples have ended but for few is let go."""
    scales: bool = False
    """The number of instances follows from the expected lengths."""
    knows: bool = False
    """Expected lengths are the true ones."""


ALL: Final = PlanPolicy(name="all", shares_prompts=True, ranks=True, cuts=True, scales=True)
PLAN_POLICIES: Final = (
    PlanPolicy(name="none"),
    PlanPolicy(name="prefill", shares_prompts=True),
    PlanPolicy(name="assigned", shares_prompts=True, ranks=True, cuts=True),
    PlanPolicy(name="uncut", shares_prompts=True, ranks=True, scales=True),
    PlanPolicy(name="unranked", shares_prompts=True, cuts=True, scales=True),
    ALL,
    PlanPolicy(name="oracle", shares_prompts=True, ranks=True, cuts=True, scales=True, knows=True),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSummary:
    """What a policy came to, beside none."""

    policy: str
    step_s: float
    cost_s: float
    """Time of all instances together, of a step."""
    instances: float
    """Started, of a step."""
    speedup: float
    cost: float
    """Against none."""
    moved: int
    prefilled_tokens: int
    cached_tokens: int


class PlannedRun(Floor):
    """One run of a workload under a policy; `run()` once."""

    def __init__(self, workload: PlannedWorkload, *, policy: PlanPolicy, seed: int) -> None:
        num_samples = workload.prompts * workload.samples
        core = RolloutCore(
            DEPLOYMENT,
            max_losses=1,
            max_pending=num_samples,
            cut=CUT if policy.cuts else None,
            step=workload.profile.step_us,
        )
        super().__init__(core, prompt_tokens=workload.prompt_tokens, pull_us=0)
        self.took_us, self.paid_us, self.started = 0, 0, 0
        self._work, self._policy, self._seed = workload, policy, seed
        self._history = LengthHistory()
        self._began_us, self._is_done = 0, False

    def run(self) -> None:
        """Play all epochs."""
        for epoch in range(self._work.epochs):
            for batch in range(self._work.steps):
                self._play(batch, epoch=epoch)
        self.account_all()

    def _play(self, batch: int, *, epoch: int) -> None:
        """Play one step: start instances, generate, and pay for those that are left."""
        work, self.step = self._work, self.step + 1
        references, self.lengths = _drawn(work, batch, epoch=epoch, seed=self._seed)
        names = [f"{batch}/{prompt}".encode() for prompt in range(work.prompts)]
        expected = [
            self._history.expect(name, reference=reference)
            for name, reference in zip(names, references, strict=True)
        ]
        if self._policy.knows:
            expected = [max(lengths) for lengths in self.lengths]
        count = self._count(expected)
        self._began_us, self._is_done = self.now_us, False
        self.started += count
        self.after(work.start_us, lambda: self._begin(count, tuple(expected)))
        while not self._is_done:
            self.happen()
        self.took_us += self.now_us - self._began_us
        for one in list(self.units):
            self.tell(events.InstanceDrained(instance_id=one))
        for name, lengths in zip(names, self.lengths, strict=True):
            self._history.observe(name, lengths)

    def _count(self, expected: Sequence[int]) -> int:
        if not self._policy.scales:
            return self._work.instances
        plan = choose_plan(
            expected,
            samples=self._work.samples,
            context=self._work.prompt_tokens,
            step=self._work.profile.step_us,
            counts=range(1, self._work.most_instances + 1),
            start=self._work.start_us,
        )
        return len(plan.parts)

    def _begin(self, count: int, expected: tuple[int, ...]) -> None:
        self.tell(events.VersionWanted(version=self.version))
        for number in range(count):
            engine = Engine(self._work.profile, shares_prompts=self._policy.shares_prompts)
            unit = Unit(engine, f"instance {number}")
            self.join(unit, kind=SPOT.name, version=self.version)
        self.submit(expected=expected if self._policy.ranks else ())

    def answered(self) -> None:
        """End the step."""
        self._is_done = True

    def completed(self, keys: Sequence[SampleKey]) -> None:
        """Nothing follows from single samples."""

    def served(self) -> None:
        """Nothing waits for an instance."""

    def released(self, unit: Unit) -> None:
        """Pay for an instance."""
        self.paid_us += self.now_us - self._began_us


def _drawn(
    work: PlannedWorkload, batch: int, *, epoch: int, seed: int
) -> tuple[list[int], list[list[int]]]:
    """Return the lengths of a batch's references, and of its samples in an epoch."""
    model = work.lengths
    fixed = np.random.default_rng((seed, batch))
    shared = fixed.normal(0, model.prompt_sigma, work.prompts)
    apart = fixed.normal(0, work.references.sigma, work.prompts)
    references = np.exp(np.log(model.median) + work.references.slope * shared + apart)
    dice = np.random.default_rng((seed, batch, epoch + 1))
    own = dice.normal(0, model.sample_sigma, (work.prompts, work.samples))
    lengths = np.exp(np.log(model.median) + shared[:, None] + own).round()
    return (
        np.clip(references, 1, model.most).round().astype(int).tolist(),
        np.clip(lengths, 1, model.most).astype(int).tolist(),
    )


def compare_plans(workload: PlannedWorkload, *, seed: int) -> Mapping[str, PlanSummary]:
    """Return what each policy comes to."""
    runs: dict[str, PlannedRun] = {}
    for policy in PLAN_POLICIES:
        run = PlannedRun(workload, policy=policy, seed=seed)
        run.run()
        runs[policy.name] = run
    base, steps = runs["none"], workload.steps * workload.epochs
    return {
        name: PlanSummary(
            policy=name,
            step_s=round(run.took_us / steps / 1e6, 3),
            cost_s=round(run.paid_us / steps / 1e6, 3),
            instances=round(run.started / steps, 2),
            speedup=round(base.took_us / run.took_us, 4),
            cost=round(run.paid_us / base.paid_us, 4),
            moved=run.moved,
            prefilled_tokens=run.spent.prefilled,
            cached_tokens=run.spent.cached,
        )
        for name, run in runs.items()
    }


def as_json(plans: Mapping[str, PlanSummary], *, preset: str, seed: int) -> dict[str, object]:
    """Return a comparison as JSON."""
    return {
        "preset": preset,
        "seed": seed,
        "policies": {name: asdict(plan) for name, plan in plans.items()},
    }
