"""The Tinker SDK, as it is: a model learns a text by heart, and a sampler recites it.

    TINKER_BASE_URL=http://HOST:PORT TINKER_API_KEY=tml-TOKEN python tinker_recite.py --model NAME

`NAME` is a base model of `[router.tinker]`, or a model directory. Nothing here is of this service.
"""

from __future__ import annotations

import argparse

import tinker
from tinker import types


def main() -> None:
    """Train, save and sample."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--tokens", type=int, nargs="+", default=[3, 9, 4, 8, 5, 7, 6])
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--lr", type=float, default=1e-2)
    given = parser.parse_args()
    with tinker.ServiceClient() as service:
        client = service.create_lora_training_client(base_model=given.model, rank=0).result()
        inputs, targets = given.tokens[:-1], given.tokens[1:]
        datum = types.Datum(
            model_input=types.ModelInput.from_ints(inputs),
            loss_fn_inputs={"target_tokens": targets, "weights": [1.0] * len(targets)},
        )
        for step in range(given.steps):
            # Both are on their way before the first is waited for.
            passed = client.forward_backward([datum], "cross_entropy")
            stepped = client.optim_step(types.AdamParams(learning_rate=given.lr))
            print(f"step {step}: loss {passed.result().metrics['loss:sum']:.3f}")
            stepped.result()
        print("saved as", client.save_state("recited", ttl_seconds=86_400).result().path)
        sampler = client.save_weights_and_get_sampling_client().result()
        prompt = types.ModelInput.from_ints(given.tokens[:2])
        params = types.SamplingParams(max_tokens=len(targets) - 1, temperature=0.0)
        (sample,) = sampler.sample(prompt, 1, params).result().sequences
        print("recited:", *given.tokens[:2], *sample.tokens)


if __name__ == "__main__":
    main()
