"""Model directories that somebody made to hold up, fill or break whoever looks at them."""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Final

CONFIG: Final = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
}
SPARSE_BYTES: Final = 3 << 30
MANY: Final = 30_000
DEPTH: Final = 100_000
"""Lists in one another."""
LINKS: Final = 400

WEIGHTS: Final = "model.safetensors"
INDEX: Final = "model.safetensors.index.json"


def weights(header: bytes, *, says: int | None = None) -> bytes:
    """Return a safetensors file without data whose header is so many bytes, or says so."""
    return struct.pack("<Q", len(header) if says is None else says) + header


def _plain(directory: Path) -> None:
    (directory / "config.json").write_text(json.dumps(CONFIG))
    (directory / WEIGHTS).write_bytes(weights(b"{}"))


def _sparse(name: str) -> Callable[[Path], None]:
    def make(directory: Path) -> None:
        (directory / name).unlink(missing_ok=True)
        (directory / name).touch()
        os.truncate(directory / name, SPARSE_BYTES)

    return make


def _written(name: str, text: Callable[[], str | bytes]) -> Callable[[Path], None]:
    def make(directory: Path) -> None:
        said = text()
        (directory / name).write_bytes(said.encode() if isinstance(said, str) else said)

    return make


def _fifo(name: str) -> Callable[[Path], None]:
    def make(directory: Path) -> None:
        (directory / name).unlink(missing_ok=True)
        os.mkfifo(directory / name)

    return make


def _directory(name: str) -> Callable[[Path], None]:
    def make(directory: Path) -> None:
        (directory / name).unlink()
        (directory / name).mkdir()

    return make


def _socket(directory: Path) -> None:
    (directory / WEIGHTS).unlink()
    here = Path.cwd()
    os.chdir(directory)  # a socket's whole path may have 107 bytes
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(WEIGHTS)
    finally:
        os.chdir(here)


def _link(name: str, target: str) -> Callable[[Path], None]:
    def make(directory: Path) -> None:
        (directory / name).unlink(missing_ok=True)
        (directory / name).symlink_to(target)

    return make


def _names(pattern: str) -> Callable[[Path], None]:
    def make(directory: Path) -> None:
        for number in range(MANY):
            (directory / pattern.format(number)).touch()

    return make


def _link_bomb(directory: Path) -> None:
    """Make links whose targets each name the next one as often as a path has room for."""
    (directory / f"link{LINKS}").mkdir()
    for number in reversed(range(LINKS)):
        again = f"link{number + 1}/../" * 200
        (directory / f"link{number}").symlink_to(again + f"link{number + 1}")
    _link("config.json", "link0/config.json")(directory)


def _many_tensors(nbytes: int) -> str:
    one = '"model.layers.{}.w":{{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}'
    return "{" + ",".join(one.format(n) for n in range(nbytes // 75)) + "}"


def _hard_link(directory: Path) -> None:
    (directory / "other").hardlink_to(directory / WEIGHTS)


MAKE: Final[dict[str, Callable[[Path], None]]] = {
    "config of 3 GiB": _sparse("config.json"),
    "config nested deep": _written("config.json", lambda: "[" * DEPTH),
    "value nested deep": _written(
        "config.json", lambda: json.dumps(CONFIG)[:-1] + ',"a":' + "[" * 900 + "]" * 900 + "}"
    ),
    "value of many objects": _written(
        "config.json", lambda: json.dumps(CONFIG)[:-1] + ',"a":[' + "{}," * 300_000 + "{}]}"
    ),
    "number of 900,000 digits": _written("config.json", lambda: '{"vocab_size":' + "9" * 900_000),
    "many keys": _written("config.json", lambda: json.dumps({f"k{n}": n for n in range(60_000)})),
    "config is a pipe": _fifo("config.json"),
    "config is a directory": _directory("config.json"),
    "config leads to itself": _link("config.json", "config.json"),
    "config leads out": _link("config.json", "/dev/zero"),
    "weights are a pipe": _fifo(WEIGHTS),
    "weights are a socket": _socket,
    "weights have two names": _hard_link,
    "30,000 names": _names("x{}.txt"),
    "30,000 weights": _names("model-{}.safetensors"),
    "a name with a line end": _written("a\nb.txt", lambda: ""),
    "header of 2^60": _written(WEIGHTS, lambda: weights(b"{}", says=1 << 60)),
    "header of 3 GiB": _sparse(WEIGHTS),
    "header nested deep": _written(WEIGHTS, lambda: weights(b"[" * (64 << 20))),
    "header of many tensors": _written(WEIGHTS, lambda: weights(_many_tensors(8 << 20).encode())),
    "index of 3 GiB": _sparse(INDEX),
    "index of 6 MiB": _written(INDEX, lambda: '{"weight_map":' + _many_tensors(6 << 20) + "}"),
    "index leads out": _written(
        INDEX, lambda: '{"weight_map":{"lm_head.weight":"../../etc/passwd"}}'
    ),
    "index is a pipe": _fifo(INDEX),
    "mark of 3 GiB": _sparse(".complete"),
    "mark nested deep": _written(".complete", lambda: "[" * DEPTH),
    "mark is a pipe": _fifo(".complete"),
    "links of links": _link_bomb,
}
"""What each makes of a plain directory."""

HARMLESS: Final = {"tokenizer of 3 GiB": _sparse("tokenizer.json")}
"""What a deployment may have: nobody but its own processes reads it."""


def make(name: str, directory: Path) -> Path:
    """Return a directory of this kind; `plain` is none of them."""
    directory.mkdir(parents=True)
    _plain(directory)
    if name != "plain":
        (MAKE | HARMLESS)[name](directory)
    return directory
