"""Headers of safetensors files that somebody made: refused by name, and read within bounds."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from plexsvc.errors import PlexError
from plexsvc.paths import CheckedPath
from plexsvc.weights import headers

CONFIG = {
    "vocab_size": 16,
    "hidden_size": 8,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "intermediate_size": 24,
}
EMBED, NORM = "model.embed_tokens.weight", "model.norm.weight"


def layer(number: int, name: str = "self_attn.q_proj") -> str:
    return f"model.layers.{number}.{name}.weight"


def tensors(**more: Any) -> dict[str, Any]:
    whole = {EMBED: (16, 8), NORM: (8,), layer(0): (8, 8), layer(1): (8, 8)}
    return {name: np.zeros(shape, "float32") for name, shape in whole.items()} | more


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "root" / "model"
    path.mkdir(parents=True)
    save_file(tensors(), path / "model.safetensors")
    return path


def problem(model: Path, config: dict[str, Any] | None = None) -> str:
    names = sorted(path.name for path in model.glob("*.safetensors"))
    return headers.check_weights(
        CheckedPath(path=model, root=model.parent), names, CONFIG if config is None else config
    )


def raw(header: object, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def entry(**changes: object) -> dict[str, object]:
    return {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **changes}


def test_whole_weights_have_no_problem(model: Path) -> None:
    assert problem(model) == ""
    assert problem(model, {}) == ""
    save_file({"lm_head.weight": np.zeros((16, 8), "float32")}, model / "model-2.safetensors")
    weight_map = {
        **dict.fromkeys(tensors(), "model.safetensors"),
        "lm_head.weight": "model-2.safetensors",
    }
    (model / headers.INDEX).write_text(json.dumps({"weight_map": weight_map}))
    assert problem(model) == ""


HOSTILE: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "no safetensors file"),
    "short": (b"\1\2\3", "no safetensors file"),
    "garbage": (b"garbage!" * 100, "no safetensors file"),
    "html": (b"<html>404 not found</html>" * 9, "no safetensors file"),
    "git lfs": (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n",
        "no safetensors file",
    ),
    "larger than the file": ((1 << 20).to_bytes(8, "little") + b"{}", "no safetensors file"),
    "2 ** 63": (((1 << 63) - 1).to_bytes(8, "little") + b"{}", "no safetensors file"),
    "no json": (raw(b"not json"), "is not JSON"),
    "not utf-8": (raw(b'{"\xff\xfe": 1}'), "is not JSON"),
    "a list": (raw([]), "is a list"),
    "nested": (raw(b"[" * 200_000), "nested too deep"),
    "a number": (raw({"w": 1}), "no dtype"),
    "no offsets": (raw({"w": {"dtype": "F32", "shape": [2]}}), "no dtype"),
    "negative shape": (raw({"w": entry(shape=[-2])}, bytes(8)), "that could be"),
    "a float as shape": (raw({"w": entry(shape=[2.0])}, bytes(8)), "that could be"),
    "true as shape": (raw({"w": entry(shape=[True])}, bytes(8)), "that could be"),
    "huge shape": (raw({"w": entry(shape=[1 << 62])}, bytes(8)), "that could be"),
    "overflow": (raw({"w": entry(shape=[1 << 40, 1 << 40])}, bytes(8)), "lies in 8 bytes"),
    "many dimensions": (raw({"w": entry(shape=[1] * 9999)}, bytes(8)), "that could be"),
    "offsets backwards": (raw({"w": entry(data_offsets=[8, 0])}, bytes(8)), "that could be"),
    "wrong size": (raw({"w": entry(shape=[3])}, bytes(8)), "lies in 8 bytes"),
    "overlap": (raw({"v": entry(), "w": entry()}, bytes(16)), "does not begin where one ends"),
    "a hole": (raw({"w": entry(data_offsets=[8, 16])}, bytes(16)), "does not begin"),
    "cut short": (raw({"w": entry()}, bytes(7)), "cut short"),
    "more than described": (raw({"w": entry()}, bytes(99)), "cut short"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_file_that_is_no_safetensors_file_is_refused_by_name(name: str, model: Path) -> None:
    data, reason = HOSTILE[name]
    (model / "model.safetensors").write_bytes(data)
    found = problem(model)
    assert reason in found
    assert "model.safetensors" in found
    assert len(found) < 3000


WRONG: dict[str, Callable[[], dict[str, Any]]] = {
    EMBED: lambda: tensors(**{EMBED: np.zeros((17, 8), "float32")}),
    NORM: lambda: tensors(**{NORM: np.zeros((9,), "float32")}),
    layer(1): lambda: tensors(**{layer(1): np.zeros((8, 4), "float32")}),
    layer(0, "mlp.up_proj"): lambda: tensors(
        **{layer(0, "mlp.up_proj"): np.zeros((8, 24), "float32")}
    ),
    "3 layers up to number 2": lambda: tensors(**{layer(2): np.zeros((8, 8), "float32")}),
}


@pytest.mark.parametrize("name", WRONG)
def test_tensors_of_another_model_are_refused_by_name(name: str, model: Path) -> None:
    save_file(WRONG[name](), model / "model.safetensors")
    found = problem(model)
    assert name in found
    assert "config.json" in found


@pytest.mark.parametrize(
    ("index", "reason"),
    [
        ("{", "Expecting"),
        ("[]", "no weight_map"),
        ('{"weight_map": 1}', "no weight_map"),
        ("[" * 99_999, "nested too deep"),
        (json.dumps({"weight_map": {NORM: "model-00002-of-00002.safetensors"}}), "00002-of-00002"),
        (json.dumps({"weight_map": {"else": "model.safetensors"}}), "'else'"),
        (json.dumps({"weight_map": {NORM: ["a"]}}), NORM),
    ],
)
def test_an_index_that_names_what_is_not_there_is_refused(
    index: str, reason: str, model: Path
) -> None:
    (model / headers.INDEX).write_text(index)
    assert reason in problem(model)


def test_a_tensor_in_two_files_is_refused(model: Path) -> None:
    save_file({NORM: np.zeros(8, "float32")}, model / "model-2.safetensors")
    assert NORM in problem(model)


def test_what_is_large_is_parsed_in_another_process_and_within_its_memory(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[list[str]] = []
    run = subprocess.run

    def counted(argv: list[str], **more: Any) -> Any:
        calls.append(argv)
        return run(argv, **more)

    monkeypatch.setattr(subprocess, "run", counted)
    assert problem(model) == ""
    assert calls == [], "small headers need no process"
    monkeypatch.setattr(headers, "CHECK_S", 300.0)  # a process starts late on a busy machine
    text = b'{"w": [' + b"[]," * (headers.QUICK_BYTES // 2) + b"[]]}"
    (model / "model.safetensors").write_bytes(raw(text))
    assert "'w' in model.safetensors has no dtype" in problem(model)
    assert len(calls) == 1
    monkeypatch.setattr(headers, "CHECK_MEMORY_BYTES", 512 << 20)
    (model / "model.safetensors").write_bytes(raw(b'{"w": [' + b"[]," * (8 << 20) + b"[]]}"))
    assert "within bounds of memory and time" in problem(model)


def test_an_index_is_not_read_beyond_its_bound(model: Path) -> None:
    with (model / headers.INDEX).open("wb") as file:
        os.truncate(file.fileno(), 1 << 40)
    assert "at most" in problem(model)


def test_weights_that_are_no_file_are_refused(model: Path, tmp_path: Path) -> None:
    (model / "model.safetensors").unlink()
    os.mkfifo(model / "model.safetensors")
    with pytest.raises(PlexError, match="not a regular file"):
        problem(model)
    (model / "model.safetensors").unlink()
    (model / "model.safetensors").symlink_to(tmp_path / "outside")
    with pytest.raises(PlexError, match="out of its root"):
        problem(model)
