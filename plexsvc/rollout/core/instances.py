"""Instances as the core sees them: kinds, the table of their life, and what each has to do.

| phase | gets samples | leaves it when |
|---|---|---|
| joining | no | it answered and has the wanted version (serving) or another (catching up) |
| catching up | no | the wanted version is loaded and its checksum is the others' |
| serving | yes | another version is wanted, a call breaks, or it is drained |
| lost | no | it answers again, or is given up |
| asleep | no | it woke with the wanted version (serving) or is to get another (catching up) |
| draining | no | its last sample is elsewhere |
| gone | no | never |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from plexsvc.ids import OperationId, VersionId
from plexsvc.rollout.core.events import SampleKey
from plexsvc.rollout.core.profile import StepTimeFit

TURN_CAP: Final = 16
"""Turns that an instance gets at once while its profile is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What the core does differently for the instances of one kind."""

    name: str
    is_sought: bool
    """Whether one that is lost may come back at its address; another is gone at once."""
    hands_back: bool = False
    """Whether it may stop samples by itself, which then go elsewhere, and is not lost by that."""


DEDICATED: Final = Kind(name="dedicated", is_sought=True)
SPOT: Final = Kind(name="spot", is_sought=False)
RESERVED: Final = Kind(name="reserved", is_sought=False)
"""An engine on training devices: joins when the seeding window opens, is drained at its end."""
SERVING: Final = Kind(name="serving", is_sought=False, hands_back=True)
"""A guest of a serving engine: it runs in what that leaves, which may be nothing for a while."""
KINDS: Final[Mapping[str, Kind]] = {
    kind.name: kind for kind in (DEDICATED, SPOT, RESERVED, SERVING)
}


class Phase(StrEnum):
    """Where an instance is in its life."""

    JOINING = "joining"
    CATCHING_UP = "catching up"
    SERVING = "serving"
    LOST = "lost"
    ASLEEP = "asleep"
    DRAINING = "draining"
    GONE = "gone"


class Trigger(StrEnum):
    """What moves an instance from one phase to the next."""

    VERIFIED = "verified"
    """It has the wanted version, and the checksum is right."""
    OUTDATED = "outdated"
    """It has another version than the wanted one."""
    BROKE = "broke"
    SLEPT = "slept"
    """It gave its memory back, so that others get its device."""
    DRAINED = "drained"
    ENDED = "ended"


_LIVING: Final = (
    Phase.JOINING,
    Phase.CATCHING_UP,
    Phase.SERVING,
    Phase.LOST,
    Phase.ASLEEP,
)
PHASES: Final[Mapping[tuple[Phase, Trigger], Phase]] = {
    **{(phase, Trigger.VERIFIED): Phase.SERVING for phase in _LIVING},
    **{(phase, Trigger.OUTDATED): Phase.CATCHING_UP for phase in _LIVING},
    **{(phase, Trigger.BROKE): Phase.LOST for phase in _LIVING},
    **{(phase, Trigger.SLEPT): Phase.ASLEEP for phase in _LIVING},
    **{(phase, Trigger.DRAINED): Phase.DRAINING for phase in _LIVING},
    (Phase.DRAINING, Trigger.VERIFIED): Phase.DRAINING,
    (Phase.DRAINING, Trigger.OUTDATED): Phase.DRAINING,
    (Phase.DRAINING, Trigger.DRAINED): Phase.DRAINING,
    (Phase.DRAINING, Trigger.BROKE): Phase.GONE,
    **{(phase, Trigger.ENDED): Phase.GONE for phase in (*_LIVING, Phase.DRAINING)},
}
"""Legal changes; what is not here is a bug."""


@dataclass(slots=True)
class Instance:
    """One engine process."""

    address: str
    version: VersionId
    kind: Kind = DEDICATED
    phase: Phase = Phase.JOINING
    checksum: str = ""
    is_sought: bool = False
    """Whether a probe is under way."""
    probes: int = 0
    """Probes since it was lost."""
    lost_because: str = ""
    rests: int = 0
    """Ticks for which it gets no samples: it handed some back."""
    load: int = 0
    """Incomplete samples that it has."""
    peak: int = 0
    """The most it had since it had none."""
    pending: dict[tuple[OperationId, SampleKey], int] = field(default_factory=dict)
    """Those of them that it has sent no token of, oldest first; with the tick of their start."""
    turns: int = 0
    """Those of them that are turns of trajectories."""
    turn_cap: int = TURN_CAP
    """Turns that it gets at once: the batch from which on a larger one gains it little."""
    context_tokens: int = 0
    """Prompts and tokens of the samples that it has."""
    tokens: int = 0
    """Tokens it has sent since it joined."""
    tokens_per_s: float = 0.0
    """Between the last two ticks."""
    tokens_then: int = 0
    running_then: int = 0
    """As of the last tick."""
    quiet_us: int = 0
    """Since the last tick before which it sent tokens: a slow one sends none between most ticks."""
    profile: StepTimeFit = field(default_factory=StepTimeFit)
    batch: float = 0.0
    step_s: float = 0.0
    """A steady batch that it had, and how long a step took: recent ticks count for more."""
    slowness: int = 1
    """How many times as long as on the fastest a step takes, so far as is certain."""

    def enter(self, trigger: Trigger) -> None:
        """Change the phase by the table."""
        assert (self.phase, trigger) in PHASES, (self, trigger)
        self.phase = PHASES[self.phase, trigger]

    def measure(self, *, elapsed_us: int) -> None:
        """Note what it did since the last tick; a steady batch goes into its profile."""
        sent, self.tokens_then = self.tokens - self.tokens_then, self.tokens
        before, self.running_then = self.running_then, self.running
        self.tokens_per_s = sent * 1e6 / max(1, elapsed_us)
        self.quiet_us += elapsed_us
        if self.turns:
            context = self.context_tokens / self.load
            self.turn_cap = self.profile.plateau(context=context) or TURN_CAP
        if not sent:
            return
        took_us, self.quiet_us = max(1, self.quiet_us), 0
        if self.running and self.running == before:
            context = self.context_tokens / self.load
            self.profile.observe(batch=before, context=context, tokens_per_s=sent * 1e6 / took_us)
            parts = 2 if self.step_s else 1
            self.batch = (self.batch + before) / parts
            self.step_s = (self.step_s + before * took_us / sent / 1e6) / parts

    @property
    def is_serving(self) -> bool:
        """Whether it gets samples."""
        return self.phase is Phase.SERVING

    @property
    def running(self) -> int:
        """Samples that it has sent tokens of."""
        return self.load - len(self.pending)
