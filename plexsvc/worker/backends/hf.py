"""Hugging Face models that a training backend computes right: configurations and tensor names."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from plexsvc import families
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.weights.boxes import Box, TensorBox
from plexsvc.worker.sources import TensorSource

HEAD: Final = "lm_head.weight"
EMBEDDINGS: Final = "model.embed_tokens.weight"


def read_config(directory: str, *, backend: str) -> Any:
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


def check_leftovers(
    weights: TensorSource,
    known: Collection[str],
    *,
    hf: Any,
    is_critic: bool,
) -> None:
    """Refuse weights with tensors that the model leaves out: it would compute something else.

    `known` are the names of the whole model, whatever this rank holds. A critic uses no language
    head, tied embeddings stand for an equal one, and rotary frequencies follow from `hf`.

    Raises:
        PlexError: `unknown_model`, naming some of them.
    """
    left = {name for name in weights.names if name not in known and "/" not in name}
    left = {name for name in left if not name.endswith("rotary_emb.inv_freq")}
    if is_critic or (HEAD in left and hf.tie_word_embeddings and _has_tied(weights, hf)):
        left.discard(HEAD)
    if left:
        first = ", ".join(sorted(left)[:5])
        raise PlexError(
            ErrorCode.UNKNOWN_MODEL,
            f"the weights hold {len(left)} tensors that this {hf.model_type} model has no use for, "
            f"among them {first}: computed without them it would be another model. Check "
            "config.json against the weights",
            tensors=len(left),
        )


def _has_tied(weights: TensorSource, hf: Any) -> bool:
    shape = (hf.vocab_size, hf.hidden_size)
    wanted = [
        TensorBox(name=name, shape=shape, box=Box.whole(shape)) for name in (HEAD, EMBEDDINGS)
    ]
    for one in wanted:
        weights.check(one)
    head, embeddings = (weights.read(one) for one in wanted)
    return bool(head.equal(embeddings))


class ValueModel(torch.nn.Module):
    """A causal model's trunk under a linear head: one value a token."""

    def __init__(self, trunk: torch.nn.Module, *, hidden: int) -> None:
        super().__init__()
        self.model = trunk
        self.value_head = torch.nn.Linear(hidden, 1, bias=False)

    def forward(self, **inputs: Any) -> Tensor:
        """Return values [1, T]."""
        hidden_1TH = self.model(**inputs).last_hidden_state
        values_1T: Tensor = self.value_head(hidden_1TH)[..., 0]
        return values_1T
