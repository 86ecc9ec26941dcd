"""Acts of a demo: a model is warmed up, GRPO jobs are played on a stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import plexsvc
from plexsvc.demo.presets import Preset
from plexsvc.demo.records import read_record
from plexsvc.demo.report import JobRun
from plexsvc.demo.show import Show
from plexsvc.demo.spans import Window
from plexsvc.demo.stage import DemoCluster
from plexsvc.errors import not_found
from plexsvc.weights.random_model import device_bytes_for_one, make_model

ACT_TIMEOUT_S: Final = 900.0


class Acts:
    """The jobs of a preset, with their files in `out_dir`.

    Attributes:
        num_parameters: of the model that `warm_up` starts from.
        device_bytes: of a device that holds the state of one job.
    """

    def __init__(self, preset: Preset, *, out_dir: Path, show: Show) -> None:
        self.preset, self.out_dir, self.show = preset, out_dir, show
        self.fresh, self.warm = out_dir / "models" / "fresh", out_dir / "models" / "warm"
        self.num_parameters = make_model(self.fresh, seed=preset.seed)
        self.device_bytes = device_bytes_for_one(self.num_parameters)
        self._scripts = Path(plexsvc.__file__).resolve().parents[1] / "examples"
        if not (self._scripts / "grpo_arithmetic.py").is_file():
            raise not_found(
                f"the demo's controllers are not in {self._scripts}: run it in a checkout"
            )

    def warm_up(self, stage: DemoCluster) -> None:
        """Train a model until it answers some problems of each task."""
        self.show.act("supervised warm-up")
        preset = self.preset
        args = {
            "model": self.fresh,
            "export": self.warm,
            "goal": preset.warm_up_goal,
            "seed": preset.seed,
            "out": self._record("warm-up"),
        }
        script, tasks = self._scripts / "warm_up.py", ("--tasks", *preset.tasks)
        job_id = stage.submit(script, *tasks, *_options(args), name="warm-up")
        self._await(stage, {"warm-up": job_id})

    def play(
        self,
        stage: DemoCluster,
        tasks: Sequence[str],
        *,
        label: str,
        waits_ms: Mapping[str, float] | None = None,
        **options: int,
    ) -> list[JobRun]:
        """Run one GRPO job for each task, all at once; return them when they have completed.

        `options` are further arguments of the controller (examples/grpo_arithmetic.py).
        """
        preset, jobs = self.preset, {}
        for task in tasks:
            name = f"{task}-{label}"
            values = {
                "task": task,
                "model": self.warm,
                "steps": preset.steps,
                "prompts": preset.prompts,
                "group": preset.group,
                "lr": preset.lr,
                "seed": preset.seed,
                "wait-ms": (waits_ms or {}).get(task, 0.0),
                "out": self._record(name),
            }
            script = self._scripts / "grpo_arithmetic.py"
            jobs[name] = stage.submit(script, *_options(values | options), name=task)
        windows = self._await(stage, jobs)
        return [
            JobRun(task=task, job_id=job_id, record=read_record(self._record(name)), window=window)
            for task, (name, job_id), window in zip(tasks, jobs.items(), windows, strict=True)
        ]

    def _await(self, stage: DemoCluster, jobs: Mapping[str, str]) -> list[Window]:
        """Return when the jobs have completed; keep their logs in any case."""
        try:
            return stage.wait([*jobs.values()], on_look=self.show.look, timeout_s=ACT_TIMEOUT_S)
        finally:
            for name, job_id in jobs.items():
                path = self.out_dir / "logs" / f"{name}.log"
                path.parent.mkdir(exist_ok=True)
                path.write_bytes(stage.log_of(job_id))

    def _record(self, name: str) -> Path:
        return self.out_dir / "records" / f"{name}.jsonl"


def _options(values: Mapping[str, object]) -> list[str]:
    return [f"--{name}={value}" for name, value in values.items()]
