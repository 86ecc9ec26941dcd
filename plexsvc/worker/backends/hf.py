"""Hugging Face configurations of models that a training backend computes right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from plexsvc import families


def read_config(directory: str, *, backend: str) -> Any:  # noqa: ANN401 - transformers is untyped
    """Return transformers' configuration of `directory`, checked for `backend`.

    It names no padding token: transformers would freeze that token's embedding, and no backend
    of ours treats it apart.

    Raises:
        PlexError: `unknown_model`, as `families.read` and `families.check`.
    """
    from transformers import AutoConfig

    families.check(families.read(Path(directory)), backend=backend, directory=directory)
    try:
        found = AutoConfig.from_pretrained(directory, local_files_only=True)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise families.unknown_model(
            directory, f"transformers cannot read its config.json ({error})"
        ) from error
    found.pad_token_id = None
    return found
