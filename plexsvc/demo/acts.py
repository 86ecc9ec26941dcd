"""Acts that demos share: a model is warmed up, GRPO jobs are played on a stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import plexsvc
from plexsvc.demo.model import make_model
from plexsvc.demo.presets import Preset
from plexsvc.demo.records import read_record
from plexsvc.demo.report import Run
from plexsvc.demo.show import Show
from plexsvc.demo.stage import Ended, Stage
from plexsvc.errors import ErrorCode, PlexError

ACT_TIMEOUT_S: Final = 900.0


class Acts:
    """The jobs of a preset, with their files in `out_dir`.

    Attributes:
        num_parameters: of the model that `warm_up` starts from.
    """

    def __init__(self, preset: Preset, *, out_dir: Path, show: Show) -> None:
        self._preset, self._out_dir, self._show = preset, out_dir, show
        self._scripts = _examples()
        self._fresh = out_dir / "models" / "fresh"
        self._model = out_dir / "models" / "warm"
        self.num_parameters = make_model(self._fresh, seed=preset.seed)

    def warm_up(self, stage: Stage) -> None:
        """Train a model until it answers some problems of each task."""
        self._show.act("supervised warm-up")
        preset = self._preset
        args = {
            "model": self._fresh,
            "export": self._model,
            "goal": preset.warm_up_goal,
            "seed": preset.seed,
            "out": self._record("warm-up"),
        }
        script = self._scripts / "warm_up.py"
        job_id = stage.submit(script, "--tasks", *preset.tasks, *_options(args), name="warm-up")
        self._await(stage, [job_id], names=["warm-up"])

    def play(
        self,
        stage: Stage,
        tasks: Sequence[str],
        *,
        label: str,
        waits_ms: Mapping[str, float] | None = None,
        steps: int | None = None,
        spot: int = 0,
        serving: int = 0,
    ) -> list[Run]:
        """Run one GRPO job for each task, all at once; return them when they have completed.

        Each may have `spot` spot instances and guests of `serving` engines beside its own.
        """
        others = {"spot": spot, "serving": serving}
        names = [f"{task}-{label}" for task in tasks]
        job_ids = [
            stage.submit(
                self._scripts / "grpo_arithmetic.py",
                *self._arguments(
                    task, name=name, wait_ms=(waits_ms or {}).get(task, 0.0), steps=steps
                ),
                *_options(others),
                name=task,
                label=label,
            )
            for task, name in zip(tasks, names, strict=True)
        ]
        ends = self._await(stage, job_ids, names=names)
        return [
            Run(
                name=task,
                task=task,
                job_id=end.job_id,
                record=read_record(self._record(name)),
                window=end.window,
            )
            for task, name, end in zip(tasks, names, ends, strict=True)
        ]

    def _arguments(self, task: str, *, name: str, wait_ms: float, steps: int | None) -> list[str]:
        preset = self._preset
        return _options(
            {
                "task": task,
                "model": self._model,
                "steps": steps or preset.steps,
                "prompts": preset.prompts,
                "group": preset.group,
                "lr": preset.lr,
                "seed": preset.seed,
                "wait-ms": wait_ms,
                "out": self._record(name),
            }
        )

    def _await(self, stage: Stage, job_ids: list[str], *, names: list[str]) -> list[Ended]:
        """Return when the jobs have completed; keep their logs in any case."""
        try:
            return stage.wait(job_ids, on_status=self._show.status, timeout_s=ACT_TIMEOUT_S)
        finally:
            for job_id, name in zip(job_ids, names, strict=True):
                path = self._out_dir / "logs" / f"{name}.log"
                path.parent.mkdir(exist_ok=True)
                path.write_bytes(stage.log_of(job_id))

    def _record(self, name: str) -> Path:
        return self._out_dir / "records" / f"{name}.jsonl"


def _options(values: Mapping[str, object]) -> list[str]:
    return [f"--{name}={value}" for name, value in values.items()]


def _examples() -> Path:
    """Return the folder of the controllers, beside the package in a checkout.

    Raises:
        PlexError: `not_found` where plexsvc is installed without it.
    """
    folder = Path(plexsvc.__file__).resolve().parents[1] / "examples"
    if not (folder / "grpo_arithmetic.py").is_file():
        raise PlexError(
            ErrorCode.NOT_FOUND, f"the demo's controllers are not in {folder}: run it in a checkout"
        )
    return folder
