"""Every family that a backend admits against transformers: before, after a step, and read again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from plexclient.batch import Batch
from plexclient.samples import Sample
from plexclient.wire.v1 import worker_pb2
from tests.fakes.fake_state_client import assemble
from tests.rigs.hf_reference import Reference
from tests.rigs.model_families import BOTH, FSDP, make_model
from tests.rigs.rank_host import Group, StartGroup
from tests.rigs.worker_batches import Arrays, answered_tokens, errors, operation, plan, random_batch

pytestmark = [pytest.mark.process, pytest.mark.slow]

TOLERANCE = 1e-5
SPLIT = plan([[0, 2], [1], [3]])
LENGTHS = (5, 9, 3, 37)
"""Below and above the windows (5 tokens) and the scaled ropes' original length (16)."""
CASES = [("fsdp", case, 1) for case in (BOTH | FSDP)] + [("megatron", case, 1) for case in BOTH]
CASES += [
    ("fsdp", "qwen3 window", 2),
    ("fsdp", "qwen3_moe", 2),
    ("fsdp", "gemma2", 2),
    ("fsdp", "llama3 rope", 4),  # two ranks a key-value head
]


def forward(group: Group, seq: int, batch: Arrays) -> np.ndarray:
    replies = group.execute(operation(seq, "forward", batch, split=SPLIT))
    assert not any(errors(replies)), [reply.result.error.message for reply in replies]
    return answered_tokens(replies, batch)


def gap(found: np.ndarray, path: Path, batch: Arrays) -> float:
    """Return the largest difference from transformers' logprobs for the model in `path`."""
    return float(np.abs(found - Reference.load(path).logprobs(batch).detach().numpy()).max())


@pytest.mark.every(2)
@pytest.mark.parametrize(("backend", "case", "cp"), CASES)
def test_logprobs_gradients_and_exports_of_a_family_are_those_of_transformers(
    start_group: StartGroup, tmp_path: Path, backend: str, case: str, cp: int
) -> None:
    model = make_model(tmp_path / "model", (BOTH | FSDP)[case])
    batch, parallel = random_batch(0, LENGTHS), {"cp": cp}
    group = start_group(backend=backend, model=str(model), parallel=parallel)
    assert gap(forward(group, 1, batch), model, batch) <= TOLERANCE

    for seq, kind in ((2, "forward_backward"), (4, "forward_backward")):
        assert not any(
            errors(group.execute(operation(seq, kind, batch, split=SPLIT, loss="cross_entropy")))
        )
        if seq == 2:
            _, wanted = Reference.load(model).gradients(batch, "cross_entropy")
            grads = assemble(group.ask("held"), "grad")
            assert set(grads) == set(wanted)
            largest = max(float(np.abs(grad).max()) for grad in wanted.values())
            for name, grad in wanted.items():
                assert np.abs(grads[name] - grad).max() <= TOLERANCE * largest, name
        assert not any(errors(group.execute(operation(seq + 1, "step", lr=1e-3, eps=1e-3))))
    after = forward(group, 6, batch)

    exported = tmp_path / "exported"
    exported.mkdir()
    held = assemble(group.ask("held"), "param")
    assert set(held) == set(load_file(model / "model.safetensors")), "exports keep every tensor"
    save_file(held, exported / "model.safetensors", metadata={"format": "pt"})
    (exported / "config.json").write_bytes((model / "config.json").read_bytes())
    assert gap(after, exported, batch) <= TOLERANCE
    again = start_group(backend=backend, model=str(exported), parallel=parallel)
    assert np.array_equal(forward(again, 1, batch), after)


@pytest.mark.parametrize("backend", ["fsdp", "megatron"])
def test_the_padding_token_s_embedding_is_trained_like_any_other(
    start_group: StartGroup, tmp_path: Path, backend: str
) -> None:
    model = make_model(tmp_path / "model", BOTH["qwen3"])
    batch = random_batch(0)
    batch["tokens"] = np.zeros_like(batch["tokens"])  # TINY's pad_token_id
    group = start_group(backend=backend, model=str(model))
    group.execute(operation(1, "forward_backward", batch, split=SPLIT, loss="cross_entropy"))
    gradient = assemble(group.ask("held"), "grad")["model.embed_tokens.weight"]
    _, wanted = Reference.load(model).gradients(batch, "cross_entropy")
    assert np.abs(wanted["model.embed_tokens.weight"][0]).max() > 0
    assert np.abs(gradient - wanted["model.embed_tokens.weight"]).max() <= TOLERANCE


def sampled(model: Path, *, temperature: float) -> Batch:
    """Return a batch of 8 answers drawn from the model token by token at `temperature`."""
    policy = Reference.load(model).model
    generator = torch.Generator().manual_seed(1)
    samples = []
    for _ in range(8):
        tokens, logprobs = [3, 4], []
        for _ in range(6):
            with torch.no_grad():
                logits = policy(input_ids=torch.tensor([tokens])).logits[0, -1]
            probabilities = torch.softmax(logits / temperature, -1)
            token = int(torch.multinomial(probabilities, 1, generator=generator))
            tokens.append(token)
            logprobs.append(float(probabilities[token].log()))
        samples.append(
            Sample(
                prompt_index=0,
                sample_index=0,
                prompt_tokens=tokens[:2],
                tokens=tokens[2:],
                logprobs=np.array(logprobs, np.float32),
                versions=[1] * 6,
                sources=[""] * 6,
                finish_reason="length",
                temperature=temperature,
            )
        )
    return Batch.from_samples(samples, advantages=np.ones(8))


@pytest.mark.parametrize("backend", ["fsdp", "megatron"])
def test_on_policy_samples_have_a_ratio_of_one_at_their_own_temperature(
    start_group: StartGroup, odd_model: Path, backend: str
) -> None:
    batch = sampled(odd_model, temperature=0.7)
    arrays, split = {**batch.arrays()}, plan([list(range(8))])
    group = start_group(backend=backend, max_logprob_gap=1e-3)

    def train(seq: int, temperature: float) -> worker_pb2.ExecuteReply:
        (reply,) = group.execute(
            operation(
                seq, "forward_backward", arrays, split=split, loss="ppo", temperature=temperature
            )
        )
        return reply

    refused = train(1, 1.0).result.error
    assert refused.code == "logprob_mismatch"
    assert "max_logprob_gap" in refused.message
    assert not any(np.any(grad) for grad in assemble(group.ask("held"), "grad").values())
    metrics = train(2, batch.temperature).result.metrics
    assert metrics["ratio_mean"] == pytest.approx(1.0, abs=1e-4)
    assert 0 < metrics["logprob_gap_mean"] <= metrics["logprob_gap_max"] <= 1e-4
    assert errors(group.execute(operation(3, "step"))) == [""]


@pytest.mark.parametrize(
    "layout",
    [
        {"backend": "fsdp", "parallel": {"dp": 2}},
        {"backend": "fsdp", "parallel": {"cp": 2}},
        {"backend": "megatron", "parallel": {"dp": 2}},
        {"backend": "megatron", "parallel": {"tp": 2}},
        {"backend": "megatron", "parallel": {"pp": 2}},
    ],
    ids=lambda layout: f"{layout['backend']}-{next(iter(layout['parallel']))}2",
)
def test_every_rank_refuses_when_one_finds_the_sampler_too_far_away(
    start_group: StartGroup, layout: dict[str, object]
) -> None:
    """Sequence 3, of one replica only where there are two, was not drawn from this policy."""
    batch = random_batch(0)
    split = plan([[0, 2]], [[1, 3]]) if "dp" in str(layout["parallel"]) else plan([[0, 2], [1, 3]])
    group = start_group(max_logprob_gap=1e-3, **layout)
    batch["logprobs"] = answered_tokens(
        group.execute(operation(1, "forward", batch, split=split)), batch
    )
    batch["mask"] = np.ones_like(batch["mask"])
    batch["logprobs"][-1] += 0.01
    replies = group.execute(operation(2, "forward_backward", batch, split=split, loss="cispo"))
    assert errors(replies) == ["logprob_mismatch"] * 2
    batch["mask"][-1] = 0.0
    replies = group.execute(operation(3, "forward_backward", batch, split=split, loss="cispo"))
    assert errors(replies) == [""] * 2
    found = next(r.result.metrics for r in replies if r.result.metrics)
    assert found["logprob_gap_max"] <= 1e-5


@pytest.mark.parametrize("backend", ["fsdp", "megatron"])
@pytest.mark.parametrize("decay_vectors", [False, True])
def test_weight_decay_spares_vectors_unless_asked(
    start_group: StartGroup, odd_model: Path, backend: str, decay_vectors: bool
) -> None:
    group = start_group(backend=backend, optimizer={"lr": 0.1, "weight_decay": 0.5})
    assert errors(group.execute(operation(1, "step", decay_vectors=decay_vectors))) == [""]
    for name, before in load_file(odd_model / "model.safetensors").items():
        decays = decay_vectors or before.ndim > 1
        after = assemble(group.ask("held"), "param")[name]
        assert np.allclose(after, before * (0.95 if decays else 1.0), rtol=1e-6, atol=0), name


@pytest.mark.parametrize(
    ("backend", "changes", "word"),
    [
        ("megatron", {"model_type": "llama", "attention_bias": True}, "attention_bias = True"),
        ("fsdp", {"model_type": "phi"}, "phi3"),
    ],
)
def test_a_rank_refuses_a_model_that_its_backend_does_not_compute(
    start_group: StartGroup, tmp_path: Path, backend: str, changes: dict[str, object], word: str
) -> None:
    model = make_model(tmp_path / "model", {"model_type": "llama"})
    text = (model / "config.json").read_text()
    (model / "config.json").write_text(json.dumps(json.loads(text) | changes))
    with pytest.raises(RuntimeError, match=word):
        start_group(backend=backend, model=str(model))


def with_tensors(model: Path, path: Path, **tensors: np.ndarray) -> Path:
    """Copy a model with tensors added or replaced."""
    shutil.copytree(model, path)
    found = load_file(model / "model.safetensors") | tensors
    save_file(found, path / "model.safetensors", metadata={"format": "pt"})
    return path


@pytest.mark.parametrize(
    "layout",
    [{"backend": "fsdp"}, {"backend": "megatron"}, {"backend": "megatron", "parallel": {"pp": 2}}],
    ids=["fsdp", "megatron", "megatron-pp2"],
)
def test_weights_that_the_model_would_leave_out_or_could_not_use_change_nothing(
    start_group: StartGroup, odd_model: Path, tmp_path: Path, layout: dict[str, object]
) -> None:
    bias = {"model.layers.3.self_attn.o_proj.bias": np.ones(64, np.float32)}
    more = with_tensors(odd_model, tmp_path / "more", **bias)
    broken = load_file(odd_model / "model.safetensors")["model.layers.0.mlp.up_proj.weight"]
    broken[-1, -1] = np.nan
    nan = with_tensors(odd_model, tmp_path / "nan", **{"model.layers.0.mlp.up_proj.weight": broken})
    group = start_group(**layout)
    before = assemble(group.ask("held"), "param")
    for seq, (path, word) in enumerate([(more, "o_proj.bias"), (nan, "up_proj")], start=1):
        replies = group.execute(operation(seq, "load", path=str(path), root=str(tmp_path)))
        assert set(errors(replies)) == {"unknown_model"}
        assert all(word in reply.result.error.message for reply in replies)
        held = assemble(group.ask("held"), "param")
        assert all(np.array_equal(held[name], before[name]) for name in before)
        fresh = start_group(initialize=False, model=str(path), **layout)
        assert "unknown_model" in errors(fresh.execute(operation(0, "initialize")))
    assert set(errors(group.execute(operation(3, "step", lr=0.0)))) == {""}


def test_a_qwen3_that_says_it_is_a_llama_is_refused(
    start_group: StartGroup, odd_model: Path, tmp_path: Path
) -> None:
    model = with_tensors(odd_model, tmp_path / "model")
    table = json.loads((model / "config.json").read_text())
    del table["architectures"]
    (model / "config.json").write_text(json.dumps(table | {"model_type": "llama"}))
    group = start_group(initialize=False, model=str(model))
    (reply,) = group.execute(operation(0, "initialize"))
    assert reply.result.error.code == "unknown_model"
    assert "self_attn.k_norm.weight" in reply.result.error.message


@pytest.mark.parametrize("backend", ["fsdp", "megatron"])
def test_in_bfloat16_it_is_as_close_to_float32_as_transformers(
    start_group: StartGroup, odd_model: Path, backend: str
) -> None:
    batch = random_batch(0, LENGTHS)
    exact, half = (Reference.load(odd_model, dtype=d) for d in (torch.float32, torch.bfloat16))
    group = start_group(backend=backend, dtype="bfloat16")
    wanted, theirs = (each.logprobs(batch).detach().numpy() for each in (exact, half))
    mine = forward(group, 1, batch)
    assert np.abs(mine - wanted).mean() <= 1.2 * np.abs(theirs - wanted).mean()

    gradients, rounded = (each.gradients(batch, "cross_entropy")[1] for each in (exact, half))
    backward = operation(2, "forward_backward", batch, split=SPLIT, loss="cross_entropy")
    assert errors(group.execute(backward)) == [""]
    found = assemble(group.ask("held"), "grad")
    assert found.keys() == gradients.keys()
    assert distance(found, gradients) <= 1.2 * distance(rounded, gradients)


def distance(found: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> float:
    return sum(float(np.abs(found[name] - wanted[name]).sum()) for name in wanted)
