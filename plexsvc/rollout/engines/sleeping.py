"""Memory that an engine gives back while it sleeps: the pages of its tensors, addresses kept."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from plexsvc.errors import bad_request
from plexsvc.rollout.engines import pages

Span = tuple[int, int]
"""Address and length, in bytes."""


def spans(tensors: Iterable[torch.Tensor]) -> list[Span]:
    """Return the memory of the tensors, each byte once, with neighbours as one span.

    Tensors that lie in pieces are left out: what is between the pieces may be another's.

    Raises:
        PlexError: `bad_request` for memory that is not the host's.
    """
    found: list[Span] = []
    dense = [tensor for tensor in tensors if tensor.is_contiguous()]
    for tensor in sorted(dense, key=lambda one: one.data_ptr()):
        if tensor.device.type != "cpu":
            raise bad_request(
                f"an engine on {tensor.device.type} cannot sleep: only host memory is given back "
                "so far; give its device to one engine alone"
            )
        start, nbytes = tensor.data_ptr(), tensor.numel() * tensor.element_size()
        if found and start <= sum(found[-1]):
            last_start, last_bytes = found.pop()
            nbytes, start = max(start + nbytes, last_start + last_bytes) - last_start, last_start
        found.append((start, nbytes))
    return found


def resident_bytes(memory: Iterable[Span]) -> int:
    """Return how much of it is in memory, in whole pages. `O(pages)`."""
    return sum(pages.resident_bytes(*span) for span in memory)


def give_back(memory: Sequence[Span]) -> int:
    """Give its whole pages back; return how many bytes were in memory. They read as zeros."""
    nbytes = resident_bytes(memory)
    for span in memory:
        pages.give_back(*span)
    return nbytes
