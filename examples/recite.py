"""Supervised fine-tuning in 30 lines: a model of random weights learns four answers by heart.

`plexctl model new tiny-qwen3 DIR` makes the model; `plexctl submit --attach recite.py DIR` runs it.
"""

import sys

import plexclient as plex

PAIRS = [("2+2=", "4"), ("3+5=", "8"), ("9-2=", "7"), ("7-4=", "3")]


def main(model: str, steps: str = "30") -> None:
    """Run one job."""
    with plex.connect() as cluster, cluster.job("recite") as job:
        adamw = plex.AdamW(lr=1e-3)
        actor = job.deploy("actor", model=model, backend="megatron", optimizer=adamw)
        encode = actor.tokenizer.encode
        batch = plex.Batch.from_sequences(
            [[*encode(question), *encode(answer)] for question, answer in PAIRS],
            prompt_lengths=[len(encode(question)) for question, _ in PAIRS],
        )
        for step in range(int(steps)):
            loss = actor.forward_backward(batch, loss="cross_entropy")["loss"]
            actor.step()
            print(f"step {step:2}: loss {loss:.3f}", flush=True)
            job.report(step=step, loss=loss)
        actor.export("recited")


if __name__ == "__main__":
    main(*sys.argv[1:])
