"""`GRPOTrainer` as users of TRL know it: the controller holds no GPU, and shares the cluster's.

It reads the names of TRL's `GRPOConfig` (1.16), or the few below, and calls reward functions as TRL
does: `f(prompts, completions, **columns) -> list[float]`. A name stands for a program of the reward
service, whose references are the column `answer`. What it would train otherwise than TRL does is
refused. `trl_digits.py` uses it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import numpy as np

import plexclient as plex

Row = Mapping[str, Any]
RewardFunction = Callable[..., Sequence[float | None]]

NEUTRAL: Final[dict[str, tuple[object, ...]]] = {
    "beta": (0.0,),
    "delta": (None,),
    "importance_sampling_level": ("token",),
    "loss_type": ("dapo", "bnpo", "grpo", "dr_grpo"),
    "lr_scheduler_type": ("linear", "cosine", "constant"),
    "mask_truncated_completions": (False,),
    "min_p": (None,),
    "off_policy_mask_threshold": (None,),
    "repetition_penalty": (1.0,),
    "reward_weights": (None,),
    "scale_rewards": ("group", True, "none", False),
    "top_entropy_quantile": (1.0,),
    "top_k": (0, None),
    "top_p": (1.0,),
}
"""Values that this trainer does as TRL does; others are refused by name."""


@dataclass(kw_only=True)
class GRPOConfig:
    """The names that are read, with TRL's defaults; an instance of TRL's own does as well."""

    output_dir: str = "trained"
    learning_rate: float = 1e-6
    adam_beta1: float = 0.9
    adam_beta2: float = 0.999
    adam_epsilon: float = 1e-8
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    lr_scheduler_type: str = "linear"
    warmup_steps: float = 0
    num_train_epochs: float = 3.0
    max_steps: int = -1
    per_device_train_batch_size: int = 8
    gradient_accumulation_steps: int = 1
    num_generations: int = 8
    num_iterations: int = 1
    max_completion_length: int = 256
    temperature: float = 1.0
    epsilon: float = 0.2
    epsilon_high: float | None = None
    loss_type: str = "dapo"
    scale_rewards: str | bool = "group"
    shuffle_dataset: bool | None = True
    seed: int = 42


class GRPOTrainer:
    """Trains `model`, a Hugging Face directory on the cluster, by GRPO on rows with a `prompt`."""

    def __init__(
        self,
        model: str,
        reward_funcs: RewardFunction | str | Sequence[RewardFunction | str],
        args: Any = None,
        train_dataset: Sequence[Row] = (),
        processing_class: Any = None,
    ) -> None:
        """Check what is asked; `train` deploys."""
        self.args = args or GRPOConfig()
        is_one = callable(reward_funcs) or isinstance(reward_funcs, str)
        self.rewards: list[Any] = [reward_funcs] if is_one else [*reward_funcs]
        self.model, self.rows, self.tokenizer = model, list(train_dataset), processing_class
        self.log_history: list[dict[str, float]] = []
        for name, values in NEUTRAL.items():
            value = getattr(self.args, name, values[0])
            if getattr(value, "value", value) not in values:
                raise ValueError(f"{name}={value!r} is not done here; only {values} are")
        # One process stands for all devices of TRL: its batch is that of all.
        self.batch = self.args.per_device_train_batch_size * self.args.gradient_accumulation_steps
        self.prompts = self.batch // self.args.num_generations
        if self.batch % self.args.num_generations or not 0 < self.prompts <= len(self.rows):
            raise ValueError(
                f"{self.batch} completions a step in groups of {self.args.num_generations}, and "
                f"{len(self.rows)} rows: a step needs whole groups, and as many rows"
            )

    def train(self, job: plex.Job) -> None:
        """Train to the end, and export the model to `output_dir`."""
        args = self.args
        adamw = plex.AdamW(
            lr=args.learning_rate,
            beta1=args.adam_beta1,
            beta2=args.adam_beta2,
            eps=args.adam_epsilon,
            weight_decay=args.weight_decay,
            clip_grad_norm=args.max_grad_norm,
        )
        policy = plex.Declared("actor", model=self.model, backend="megatron", optimizer=adamw)
        engine = plex.Declared("rollout", model=policy, backend="vllm")
        actor, rollout = job.deploy_all(policy, engine)
        epochs = math.ceil(args.num_train_epochs * len(self.rows) / self.prompts)
        steps = args.max_steps if args.max_steps > 0 else epochs * args.num_iterations
        rows, step = self._rows(), 0
        while step < steps:
            rollout.sync(actor)
            chosen = list(islice(rows, self.prompts))
            samples = rollout.generate(
                [self._prompt(row["prompt"]) for row in chosen],
                n=args.num_generations,
                max_tokens=args.max_completion_length,
                temperature=args.temperature,
                seed=args.seed + step,
            )
            columns = [chosen[sample.prompt_index] for sample in samples]
            rewards = self._score(job, list(samples), columns)
            batch = plex.Batch.from_samples(samples, advantages=self._weights(samples, rewards))
            for _ in range(min(args.num_iterations, steps - step)):
                clips = {"clip": args.epsilon, "clip_high": args.epsilon_high or args.epsilon}
                loss = actor.forward_backward(batch, loss="ppo", **clips)
                update = actor.step(lr=self._lr(step, steps), position=step)
                step += 1
                told = {"step": step, "reward": float(rewards.mean()), "loss": loss["loss"]}
                self.log_history.append(told | {"grad_norm": update["grad_norm"]})
                print(self.log_history[-1], flush=True)
                job.report(step=step, reward=told["reward"])
        actor.export(args.output_dir)

    def _rows(self) -> Iterator[Row]:
        order, rng = list(range(len(self.rows))), random.Random(self.args.seed)
        while True:
            if self.args.shuffle_dataset is not False:
                rng.shuffle(order)
            usable = len(order) - len(order) % self.prompts
            yield from (self.rows[i] for i in order[:usable])

    def _prompt(self, given: Any) -> Any:
        """Return a text as it is, and messages as token ids by the chat template."""
        if isinstance(given, str):
            return given
        if self.tokenizer is None:
            raise ValueError("a prompt holds messages; give processing_class, a tokenizer")
        made = self.tokenizer.apply_chat_template(given, add_generation_prompt=True)
        return list(made["input_ids"] if isinstance(made, Mapping) else made)

    def _score(self, job: plex.Job, samples: list[plex.Sample], rows: list[Row]) -> Any:
        prompts, texts = [row["prompt"] for row in rows], [sample.text or "" for sample in samples]
        completions: list[Any] = texts
        if not isinstance(prompts[0], str):
            completions = [[{"role": "assistant", "content": text}] for text in texts]
        columns = {name: [row[name] for row in rows] for name in rows[0] if name != "prompt"}
        columns["completion_ids"] = [sample.tokens for sample in samples]
        total = np.zeros(len(samples))
        for reward in self.rewards:
            if isinstance(reward, str):
                total += job.score(reward, samples, references=columns["answer"]).filled(0.0)
            else:
                found = reward(prompts=prompts, completions=completions, **columns)
                total += [value or 0.0 for value in found]
        return total

    def _weights(self, samples: plex.Samples, rewards: Any) -> list[float]:
        """Return each sample's advantage over what its loss is divided by."""
        args, groups = self.args, rewards.reshape(-1, self.args.num_generations)
        advantages = groups - groups.mean(1, keepdims=True)
        if args.scale_rewards in {"group", True}:
            advantages /= groups.std(1, ddof=1, keepdims=True) + 1e-4
        lengths = np.array([len(sample.tokens) for sample in samples])
        shares = {
            "grpo": lengths * len(lengths),
            "dr_grpo": len(lengths) * args.max_completion_length,
        }
        advantages = advantages.reshape(-1) / shares.get(args.loss_type, max(1, lengths.sum()))
        return [float(value) for value in advantages]

    def _lr(self, step: int, steps: int) -> float:
        asked, warmup = self.args.lr_scheduler_type, self.args.warmup_steps
        warm = int(warmup if warmup >= 1 else warmup * steps)
        if step < warm:
            return float(self.args.learning_rate * step / warm)
        done = (step - warm) / max(1, steps - warm)
        shares = {"linear": 1 - done, "cosine": (1 + math.cos(math.pi * done)) / 2}
        return float(self.args.learning_rate * shares.get(getattr(asked, "value", asked), 1.0))
