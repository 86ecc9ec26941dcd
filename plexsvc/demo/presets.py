"""Presets of the demo: tasks, sizes, learning rates and waits, by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from plexsvc.errors import bad_request


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """One demonstration: a warm-up, the jobs without what it shows, then with it."""

    name: str
    shows: str = "sharing"
    """`sharing`: each job alone, then all on one device. `spot`: both jobs without spot instances,
    then with them."""
    tasks: tuple[str, ...] = ("count_bits", "spell_backward")
    """The verifiable tasks (examples/verifiable_tasks.py), a job each."""
    steps: int = 80
    """GRPO steps of a job."""
    prompts: int = 16
    """Prompts of a step."""
    group: int = 8
    """Answers sampled for each prompt."""
    lr: float = 3e-4
    """Learning rate of the GRPO jobs."""
    warm_up_goal: float = 0.22
    """Accuracy on each task's held-out prompts that ends the warm-up."""
    wait_share: float = 0.0
    """Share of a job's cycle spent waiting for an external tool; 0: it calls none."""
    min_speedup: float = 0.0
    """Least speedup of the shared run over the jobs one after the other."""
    uses_rewards: bool = False
    """Whether the tasks are scored by the reward service, whose pool is then shown and drawn."""
    seed: int = 0
    """Of the model, the data and the sampling."""


PRESETS: Final = {
    preset.name: preset
    for preset in (
        Preset(name="arithmetic"),
        Preset(name="waits", steps=60, wait_share=0.65, min_speedup=1.5),
        Preset(name="frozen", steps=40, lr=0.0),
        Preset(
            name="code",
            tasks=("write_polynomial", "write_choice"),
            steps=30,
            lr=1e-4,
            uses_rewards=True,
        ),
        Preset(name="spot", shows="spot", steps=40),
    )
}
"""`frozen` learns at rate 0: its learning check must fail, and the demo with it."""


def find_preset(name: str) -> Preset:
    """Return the preset called `name`.

    Raises:
        PlexError: `bad_request`, listing the known ones.
    """
    if name not in PRESETS:
        raise bad_request(f"no preset {name!r}; there are {', '.join(sorted(PRESETS))}")
    return PRESETS[name]
