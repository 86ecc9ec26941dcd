"""What transformers makes of a batch in fp32: the reference every backend is compared with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from plexsvc.worker import losses

PerSequence = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(slots=True)
class Reference:
    """A transformers model and its gradients."""

    model: Any

    @classmethod
    def load(cls, path: Path, *, dtype: torch.dtype = torch.float32) -> Reference:
        """Return the model of a Hugging Face directory, with eager attention.

        Its padding token is one like any other, as it is for every backend.
        """
        from transformers import AutoConfig, AutoModelForCausalLM

        torch.set_num_threads(1)
        config = AutoConfig.from_pretrained(path)
        config.pad_token_id = None
        model = AutoModelForCausalLM.from_pretrained(
            path, config=config, dtype=dtype, attn_implementation="eager"
        )
        return cls(model.train())

    def logprobs(
        self, batch: Mapping[str, np.ndarray], *, temperature: float = 1.0
    ) -> torch.Tensor:
        """Return logprobs[T] of the targets, sequence by sequence."""
        return self._per_sequence(batch, lambda ids, targets: self._one(ids, targets, temperature))

    def values(self, batch: Mapping[str, np.ndarray], head: np.ndarray) -> torch.Tensor:
        """Return values[T] of a critic whose head is `head[1, H]`."""
        weight = torch.from_numpy(head)
        return self._per_sequence(
            batch,
            lambda ids, _targets: (
                self.model.model(input_ids=ids[None]).last_hidden_state[0] @ weight.T
            )[:, 0],
        )

    def gradients(
        self, batch: Mapping[str, np.ndarray], loss: str, args: Mapping[str, float] | None = None
    ) -> tuple[float, dict[str, np.ndarray]]:
        """Return the loss and its gradients by parameter name."""
        arrays = {
            name: torch.from_numpy(array.copy())
            for name, array in batch.items()
            if name != "cu_seqlens"
        }
        self.model.zero_grad()
        terms = losses.resolve(loss, args or {}, role="actor")(self.logprobs(batch), arrays)
        terms.loss.backward()
        grads = {name: param.grad for name, param in self.model.named_parameters()}
        found = {
            part: values.float().numpy().copy()
            for name, grad in grads.items()
            for part, values in _parts(name, grad).items()
        }
        return float(terms.loss.detach()), found

    def _one(self, ids: torch.Tensor, targets: torch.Tensor, temperature: float) -> torch.Tensor:
        logits = self.model(input_ids=ids[None]).logits[0].float() / temperature
        return torch.log_softmax(logits, -1).gather(-1, targets[:, None])[:, 0]

    def _per_sequence(self, batch: Mapping[str, np.ndarray], run: PerSequence) -> torch.Tensor:
        bounds = batch["cu_seqlens"].tolist()
        tokens = torch.from_numpy(batch["tokens"].astype(np.int64))
        targets = torch.from_numpy(batch["target_tokens"].astype(np.int64))
        return torch.cat([run(tokens[a:b], targets[a:b]) for a, b in pairwise(bounds)])


def _parts(name: str, tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return a parameter by its names in a checkpoint, which holds each expert by itself."""
    layer, _, fused = name.rpartition(".")
    if not layer.endswith(".experts"):
        return {name: tensor}
    names = [f"{part}_proj" for part in fused.removesuffix("_proj").split("_")]
    return {
        f"{layer}.{expert}.{part}.weight": values
        for expert, whole in enumerate(tensor)
        for part, values in zip(names, whole.chunk(len(names)), strict=True)
    }
