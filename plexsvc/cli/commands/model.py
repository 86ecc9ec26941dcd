"""`plexctl model`: make small random models to try the service with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from plexsvc.cli.app import Json, print_json

model_app = typer.Typer(
    no_args_is_help=True,
    help="Make models to try the service with.",
    epilog="Example: plexctl model new tiny-qwen3 models/tiny",
)


@model_app.command(epilog="Example: plexctl model new tiny-qwen3 models/tiny")
def new(
    kind: Annotated[str, typer.Argument(help="tiny-qwen3, of 1.2 M parameters.")],
    directory: Annotated[Path, typer.Argument(help="Where it goes; must not exist.")],
    seed: Annotated[int, typer.Option(help="Of its random weights.", min=0)] = 0,
    json: Json = False,
) -> None:
    """Write a random character-level model as an ordinary Hugging Face directory."""
    from plexsvc.errors import bad_request
    from plexsvc.weights.random_model import make_model

    if kind != "tiny-qwen3":
        raise bad_request(f"{kind!r} is not known; there is: tiny-qwen3")
    try:
        parameters = make_model(directory, seed=seed)
    except OSError as error:
        raise bad_request(f"cannot write a model to {directory}: {error}; name another") from error
    where = directory.resolve()
    if json:
        print_json({"directory": str(where), "parameters": parameters})
    else:
        typer.echo(f"made {where}: a random Qwen3 of {parameters:,} parameters")
