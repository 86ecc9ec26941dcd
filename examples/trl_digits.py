"""A training script as for TRL: a model of random weights learns to answer in digits.

`plexctl submit --attach examples/trl_digits.py DIR`; `plexctl model new tiny-qwen3 DIR` makes the
model. With TRL installed, `from trl import GRPOConfig` does as well.
"""

import sys

from trl_trainer import GRPOConfig, GRPOTrainer

import plexclient as plex


def digits(completions: list[str], **_: object) -> list[float]:
    """Reward the share of characters that are digits."""
    return [sum(c.isdigit() for c in text) / 12 for text in completions]


def main(model: str, output_dir: str) -> None:
    """Run one job."""
    config = GRPOConfig(
        output_dir=output_dir,
        learning_rate=1e-3,
        per_device_train_batch_size=64,
        num_generations=16,
        max_completion_length=12,
        max_steps=20,
        lr_scheduler_type="constant",
    )
    rows = [{"prompt": word} for word in ("one", "two", "three", "four")]
    trainer = GRPOTrainer(model, reward_funcs=digits, args=config, train_dataset=rows)
    with plex.connect() as cluster, cluster.job("trl-digits") as job:
        trainer.train(job)


if __name__ == "__main__":
    main(*sys.argv[1:])
