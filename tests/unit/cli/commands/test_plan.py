"""`plexctl plan`: layouts that fit, and what the docs say of them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from plexclient.specs import Parallel
from plexsvc import sizes
from plexsvc.cli.commands.plan import GB, layouts
from plexsvc.cli.main import app

QWEN3: dict[str, Any] = {
    "model_type": "qwen3",
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151_936,
    "tie_word_embeddings": False,
}
MODELS = {
    "Qwen3-8B": {
        **QWEN3,
        "hidden_size": 4096,
        "intermediate_size": 12_288,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
    },
    "Qwen3-32B": {
        **QWEN3,
        "hidden_size": 5120,
        "intermediate_size": 25_600,
        "num_hidden_layers": 64,
        "num_attention_heads": 64,
    },
}
MODELS |= {
    name: {
        **QWEN3,
        "model_type": "qwen3_moe",
        "num_key_value_heads": 4,
        "hidden_size": hidden,
        "intermediate_size": 3 * hidden,
        "moe_intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_experts": 128,
        "num_experts_per_tok": 8,
    }
    for name, hidden, inner, layers, heads in (
        ("Qwen3-30B-A3B", 2048, 768, 48, 32),
        ("Qwen3-235B-A22B", 4096, 1536, 94, 64),
    )
}
DOCS = Path(__file__).parents[4] / "docs/operating.md"


def planned(
    name: str,
    *,
    gpus: int,
    tokens: int = 32_768,
    nbytes: int = 80 * GB,
    backend: str = "megatron",
    steps_on_host: bool = False,
) -> list[dict[str, Any]]:
    return layouts(
        MODELS[name],
        backend=backend,
        dtype="bfloat16",
        gpus=gpus,
        tokens=tokens,
        nbytes=nbytes,
        steps_on_host=steps_on_host,
    )


def test_what_fits_comes_first_with_the_least_to_recompute() -> None:
    rows = planned("Qwen3-8B", gpus=8)
    order = ["none", "selective", "full", None]
    least = [row["recompute"] for row in rows]
    assert least == sorted(least, key=order.index)
    assert set(least) == set(order)
    for row in rows:
        assert row["tp"] * row["pp"] * row["dp"] * row["cp"] == 8
        held = row["pass"]
        assert held["none"] > held["selective"] > held["full"]
        fits = [what for what, nbytes in held.items() if row["recompute"] == what]
        assert bool(fits) == (row["free"] >= 0)
    parallel = Parallel(tp=4, dp=2, distributed_optimizer=True)
    found = sizes.of(
        MODELS["Qwen3-8B"], backend="megatron", dtype="bfloat16", parallel=parallel, is_trained=True
    )
    (row,) = (row for row in rows if (row["tp"], row["pp"], row["cp"]) == (4, 1, 1))
    assert row["optimizer"] == found.optimizer == pytest.approx(row["params"] * 6 / 2, rel=1e-6)


def test_the_table_in_the_docs_is_what_the_command_says() -> None:
    line = re.compile(r"^\| (Qwen3-\S+) \| (\d+) x (\d+), (\d+)k \|(.*)\|$", re.MULTILINE)
    lines = line.findall(DOCS.read_text())
    assert len(lines) == 6
    for name, gpus, each, tokens, told in lines:
        backend = "fsdp" if told.startswith(" fsdp") else "megatron"
        on_host = ", optimizer on the host"
        row = planned(
            name,
            gpus=int(gpus),
            tokens=int(tokens) << 10,
            nbytes=int(each) * GB,
            backend=backend,
            steps_on_host=on_host in told,
        )[0]
        state = row["params"] + row["optimizer"]
        there = row["params"] if on_host in told else state
        figures = [there, row["gradients"], *row["pass"].values(), 4 * state]
        names = ("tp", "pp", "dp", "cp", "ep")
        degrees = (name for name in names if row[name] > 1 or name == "dp")
        layout = ", ".join(f"{name} {row[name]}" for name in degrees)
        layout = f"fsdp {layout}" if backend == "fsdp" else layout
        layout += on_host if on_host in told else ""
        wanted = [layout, *(f"{n / GB:.0f}" for n in figures), row["recompute"]]
        assert [cell.strip() for cell in told.split("|")] == wanted


def test_sequences_are_planned_over_ranks_that_share_out_the_heads() -> None:
    rows = planned("Qwen3-30B-A3B", gpus=16, backend="fsdp")
    assert sorted((row["dp"], row["cp"]) for row in rows) == [(2, 8), (4, 4), (8, 2), (16, 1)]
    best = rows[0]
    assert (best["cp"], best["recompute"]) == (8, "selective")
    whole = next(row for row in rows if row["cp"] == 1)
    assert whole["recompute"] is None, "no replica of one rank has room for 32k tokens"
    assert best["params"] == whole["params"], "the state is split over all ranks anyway"
    assert whole["pass"]["none"] / 8 < best["pass"]["none"] < whole["pass"]["none"] / 5


def test_experts_are_planned_over_divisors_of_a_stage_s_ranks() -> None:
    rows = planned("Qwen3-30B-A3B", gpus=16, tokens=16_384)
    assert {row["tp"] for row in rows} == {1, 2, 4}
    for tp in (1, 2, 4):
        of_tp = [row for row in rows if (row["tp"], row["pp"]) == (tp, 1)]
        # Tensor ranks have no experts of their own unless these are shared out.
        assert {row["ep"] for row in of_tp} == {1, 2, 4, 8, 16} - ({1} if tp > 1 else set())
        by_ep = [row["params"] for row in sorted(of_tp, key=lambda r: r["ep"])]
        assert by_ep == sorted(by_ep, reverse=True)
    held = planned("Qwen3-235B-A22B", gpus=32, tokens=4096)
    assert all(row["recompute"] is None for row in held)
    assert held[0]["free"] == max(row["free"] for row in held), "the nearest comes first"


def test_a_model_is_planned_from_its_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    (tmp_path / "config.json").write_text(json.dumps(MODELS["Qwen3-8B"]))
    done = CliRunner().invoke(app, ["plan", str(tmp_path), "--jobs", "4", "--json"])
    assert done.exit_code == 0, done.output
    best = json.loads(done.stdout)[0]
    assert (best["tp"], best["cp"], best["recompute"]) == (2, 4, "none")
    assert best["host_bytes_per_gpu"] == 4 * (best["params"] + best["optimizer"])
    shown = CliRunner().invoke(app, ["plan", str(tmp_path), "--backend", "fsdp"])
    assert "recompute=full" in shown.output


def test_adapters_take_the_model_once_and_little_else(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(MODELS["Qwen3-8B"]))
    rows = []
    for more in ([], ["--lora-rank", "16"]):
        arguments = ["plan", str(tmp_path), "--gpus", "1x80", "--backend", "fsdp", "--json", *more]
        done = CliRunner().invoke(app, arguments)
        assert done.exit_code == 0, done.output
        rows += json.loads(done.stdout)
    whole, adapters = rows
    assert whole["recompute"] is None, "8 billion parameters of 16 bytes"
    assert adapters["optimizer"] + adapters["gradients"] < adapters["params"] // 25
    assert adapters["params"] < whole["params"] * 0.52
    assert adapters["recompute"] is not None


@pytest.mark.parametrize(
    ("changes", "arguments", "word"),
    [
        ({}, ["--gpus", "8"], "such as 8x80"),
        ({}, ["--backend", "vllm"], "backends are megatron and fsdp"),
        ({"model_type": "qwen3_moe"}, [], "num_experts is missing"),
        ({"model_type": "qwen3_next"}, [], "qwen3_next"),
        ({}, ["--lora-rank", "16"], "fsdp alone trains adapters"),
        ({}, ["--lora-rank", "2048", "--backend", "fsdp"], "smallest side"),
    ],
)
def test_what_cannot_be_planned_is_refused(
    tmp_path: Path, changes: dict[str, Any], arguments: list[str], word: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**MODELS["Qwen3-8B"], **changes}))
    done = CliRunner().invoke(app, ["plan", str(tmp_path), *arguments])
    assert done.exit_code != 0
    assert word in done.output.replace("\n", " ")


def test_an_optimizer_on_the_host_takes_nothing_of_a_gpu(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(MODELS["Qwen3-8B"]))
    arguments = ["plan", str(tmp_path), "--gpus", "1x140", "--json"]
    found = []
    for more in ([], ["--optimizer", "host"]):
        done = CliRunner().invoke(app, [*arguments, *more])
        assert done.exit_code == 0, done.output
        found += json.loads(done.stdout)
    device, host = found
    assert host["free"] - device["free"] == device["optimizer"] == host["optimizer"]
    assert host["host_bytes_per_gpu"] == device["host_bytes_per_gpu"]
    lora = ["--backend", "fsdp", "--lora-rank", "8"]
    refused = CliRunner().invoke(app, [*arguments, *lora, "--optimizer", "host"])
    assert refused.exit_code != 0
    assert "without --lora-rank" in refused.output.replace("\n", " ")
