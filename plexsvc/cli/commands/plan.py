"""`plexctl plan`: say in which layouts a model can be trained on some GPUs."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from plexsvc.cli.app import Json, console, print_json

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.table import Table

    from plexclient.specs import Parallel
    from plexsvc.families import Config
    from plexsvc.lora import Lora

GB: Final = 10**9
MOST_SPLIT: Final = 8
"""Largest degree that is tried: the GPUs of a node."""
MOST_GPUS: Final = 1 << 16
SHOWN: Final = 12
"""Layouts that are printed, the best first."""
RECOMPUTED: Final = ("", "selective", "full")


def plan(  # noqa: PLR0913, PLR0917 - options of a command
    model: Annotated[Path, typer.Argument(help="Hugging Face directory; weights are not read.")],
    gpus: Annotated[str, typer.Option(help="How many, and GB of each: 8x80.")] = "8x80",
    tokens: Annotated[int, typer.Option(help="Tokens of a replica's micro-batch.", min=1)] = 32768,
    jobs: Annotated[int, typer.Option(help="Jobs of this kind on these GPUs.", min=1)] = 1,
    backend: Annotated[str, typer.Option(help="megatron or fsdp.")] = "megatron",
    dtype: Annotated[str, typer.Option(help="bfloat16 or float32.")] = "bfloat16",
    lora_rank: Annotated[
        int, typer.Option(help="Train adapters of this rank on every linear layer; 0: all.", min=0)
    ] = 0,
    optimizer: Annotated[str, typer.Option(help="Where it is: device or host.")] = "device",
    json: Json = False,
) -> None:
    """Say in which layouts a model can be trained: GB on the fullest GPU, and what fits.

    All but one of the jobs keep parameters and optimizer in host memory.
    """
    from plexsvc import families, sizes
    from plexsvc.errors import bad_request
    from plexsvc.lora import Lora

    count, nbytes = _gpus(gpus)
    if backend not in {"megatron", "fsdp"} or dtype not in {"bfloat16", "float32"}:
        raise bad_request(
            f"--backend {backend} --dtype {dtype}: backends are megatron and fsdp, and dtypes "
            "bfloat16 and float32"
        )
    refusing = sizes.steps_on_devices(backend, has_lora=lora_rank > 0)
    if optimizer not in {"device", "host"} or (optimizer == "host" and refusing):
        raise bad_request(
            f"--optimizer {optimizer}{refusing and f' with {refusing}'}: it is on the device, or "
            "on the host without --lora-rank"
        )
    table = families.read(model)
    families.check(table, backend=backend, directory=model)
    lora = Lora(rank=lora_rank, alpha=1.0) if lora_rank else None
    if lora is not None:
        if backend != "fsdp":
            raise bad_request(f"--lora-rank with --backend {backend}: fsdp alone trains adapters")
        lora.check(table)
    rows = layouts(
        table,
        backend=backend,
        dtype=dtype,
        gpus=count,
        tokens=tokens,
        nbytes=nbytes,
        lora=lora,
        steps_on_host=optimizer == "host",
    )
    for row in rows:
        row["host_bytes_per_gpu"] = jobs * (row["params"] + row["optimizer"])
    if json:
        print_json(rows)
    else:
        console().print(_view(rows[:SHOWN]))


def layouts(
    table: Config,
    *,
    backend: str,
    dtype: str,
    gpus: int,
    tokens: int,
    nbytes: int,
    lora: Lora | None = None,
    steps_on_host: bool = False,
) -> list[dict[str, Any]]:
    """Return each layout with bytes on its fullest GPU and what it must recompute to fit.

    First come those that fit, with the least to recompute, split the least.
    """
    from plexsvc import sizes

    state_of = partial(
        sizes.of,
        table,
        backend=backend,
        dtype=dtype,
        is_trained=True,
        lora=lora,
        steps_on_host=steps_on_host,
    )
    pass_of = partial(sizes.of_pass, table, backend=backend, dtype=dtype, tokens=tokens, lora=lora)
    rows: list[dict[str, Any]] = []
    for parallel in _degrees(table, backend=backend, gpus=gpus):
        state = state_of(parallel=parallel)
        passes = {what or "none": pass_of(parallel=parallel, recompute=what) for what in RECOMPUTED}
        used = state.state + sizes.CONTEXT_BYTES + (gpus > 1) * sizes.COMMUNICATOR_BYTES
        fitting = [what for what, held in passes.items() if used + held <= nbytes]
        rows.append(
            {
                "tp": parallel.tp,
                "pp": parallel.pp,
                "dp": parallel.dp,
                "cp": parallel.cp,
                "ep": parallel.ep,
                "params": state.params,
                "optimizer": state.optimizer,
                "gradients": state.gradients,
                "pass": passes,
                "recompute": fitting[0] if fitting else None,
                "free": nbytes - used - passes[fitting[0] if fitting else "full"],
            }
        )
    order = [*("none", "selective", "full"), None]
    return sorted(
        rows,
        key=lambda r: (
            order.index(r["recompute"]),
            -r["free"] * (r["recompute"] is None),
            r["pp"],
            r["tp"],
            r["cp"],
            r["ep"],
        ),
    )


def _degrees(table: Config, *, backend: str, gpus: int) -> Iterator[Parallel]:
    """Yield the layouts of all GPUs, with all that makes the state of a rank smaller."""
    from plexclient.specs import Parallel
    from plexsvc import families

    if backend == "fsdp":
        for cp in _sequences(table, ranks=gpus):
            yield Parallel(dp=gpus // cp, cp=cp)
        return
    heads, experts = table["num_attention_heads"], families.num_experts(table)
    divided = [heads, table.get("num_key_value_heads") or heads]
    if not experts:
        divided.append(table["intermediate_size"])
    for tp in range(1, MOST_SPLIT + 1):
        for pp in range(1, MOST_SPLIT + 1):
            split = (*(n % tp for n in divided), table["num_hidden_layers"] % pp, gpus % (tp * pp))
            if any(split):
                continue
            copies = gpus // (tp * pp)
            for cp in _sequences(table, ranks=copies, tp=tp):
                # Tensor ranks hold whole experts, which they have to share out.
                for ep in range(1 + (experts > 0 and tp > 1), min(tp * copies, experts or 1) + 1):
                    if tp * copies % ep == 0 and (experts or 1) % ep == 0:
                        yield Parallel(
                            tp=tp,
                            pp=pp,
                            dp=copies // cp,
                            cp=cp,
                            ep=ep,
                            sequence_parallel=tp > 1,
                            distributed_optimizer=copies > 1,
                        )


def _sequences(table: Config, *, ranks: int, tp: int = 1) -> Iterator[int]:
    """Yield by how many of `ranks` sequences may be split."""
    from plexsvc import families

    for cp in range(1, MOST_SPLIT + 1):
        if ranks % cp == 0 and families.shares_heads(table, cp, tp=tp):
            yield cp


def _view(rows: list[dict[str, Any]]) -> Table:
    from plexsvc.show.status import table_of

    names = ("params", "optimizer", "gradients", "pass", "selective", "full", "fits", "GB free")
    table = table_of("tp", "pp", "dp", "cp", "ep", *names, "host GB")
    for row in rows:
        fits = {None: "no", "none": "yes"}.get(row["recompute"], f"recompute={row['recompute']}")
        figures = [row["params"], row["optimizer"], row["gradients"], *row["pass"].values()]
        degrees = (str(row[name]) for name in ("tp", "pp", "dp", "cp", "ep"))
        told = [f"{figure / GB:.1f}" for figure in figures]
        table.add_row(
            *degrees,
            *told,
            fits,
            f"{row['free'] / GB:.1f}",
            f"{row['host_bytes_per_gpu'] / GB:.0f}",
        )
    return table


def _gpus(text: str) -> tuple[int, int]:
    """Return how many GPUs `8x80` are, and the bytes of each.

    Raises:
        PlexError: `bad_request`.
    """
    from plexsvc.errors import bad_request

    found = re.fullmatch(r"([1-9]\d{0,4})x([1-9]\d{0,3})", text)
    if found is None or int(found[1]) > MOST_GPUS:
        raise bad_request(f"--gpus {text!r}: give how many and the GB of each, such as 8x80")
    return int(found[1]), int(found[2]) * GB
