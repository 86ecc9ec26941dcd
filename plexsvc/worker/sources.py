"""Sources of tensors for a backend, read box by box: checkpoints and published versions."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from plexsvc import paths, progress
from plexsvc.errors import ErrorCode, PlexError, bad_request
from plexsvc.weights.boxes import Box, TensorBox
from plexsvc.weights.checkpoints import STATE_FILE, Seal, read_seal
from plexsvc.weights.dtypes import DTYPES
from plexsvc.weights.reading import OpenedPart, VersionReader
from plexsvc.worker.canonical import TensorSlice

if TYPE_CHECKING:
    import torch


MODEL: Final = "model*.safetensors"
"""Files of a model's weights."""

MAX_STATE_BYTES: Final = 64 << 20
"""Largest file of scalars that is read: those of all ranks of a large job have some MiB."""


class TensorSource(Protocol):
    """Named tensors that can be read one box at a time."""

    @property
    def names(self) -> Collection[str]:
        """The names of all tensors; those of an optimizer's state are `kind/name`."""

    def check(self, wanted: TensorBox) -> None:
        """Refuse a box that `read` could not return.

        Raises:
            PlexError: `unknown_model` when the source lacks the tensor, has it in another shape, or
                has only a part of the box.
        """

    def read(self, wanted: TensorBox) -> torch.Tensor:
        """Return the values of a box that `check` passed; the caller copies them."""


@dataclass(frozen=True, slots=True)
class Read:
    """A box that `source` has for `view`; nothing is copied yet."""

    view: torch.Tensor
    wanted: TensorBox
    source: TensorSource


def reads(held: Iterable[TensorSlice], source: TensorSource, *, prefix: str = "") -> list[Read]:
    """Return what fills each slice with its box of `prefix + name`, once `source` has it all.

    Raises:
        PlexError: as `TensorSource.check`.
    """
    found = []
    for item in held:
        progress.advance()
        key = item.key
        wanted = TensorBox(name=prefix + key.name, shape=key.shape, box=key.box)
        source.check(wanted)
        found.append(Read(item.view, wanted, source))
    return found


def has_masters(source: TensorSource) -> bool:
    """Return whether an optimizer's state has float32 masters: weights of more bits than saved.

    They become the masters of a deployment in less than float32, and the parameters of another.
    """
    return any(name.startswith("master/") for name in source.names)


def copy(planned: Iterable[Read]) -> None:
    """Fill the memory of all that was planned."""
    import torch

    with torch.no_grad():
        for one in planned:
            one.view.copy_(one.source.read(one.wanted))
            progress.advance()


def check_finite(planned: Iterable[Read], *, is_copied: bool = False) -> None:
    """Refuse planned tensors with a value that is no finite number, read before they are copied.

    Where they are copied already their memory is looked at.

    Raises:
        PlexError: `unknown_model`, naming the first such tensor.
    """
    for one in planned:
        values = one.view if is_copied else one.source.read(one.wanted)
        if not bool(values.isfinite().all()):
            raise PlexError(
                ErrorCode.UNKNOWN_MODEL,
                f"tensor {one.wanted.name!r} has values that are no finite numbers; nothing could "
                "be computed with it. Give weights from before they broke",
                tensor=one.wanted.name,
            )


class SafetensorsSource:
    """The safetensors files of a directory; reads only the bytes of the boxes asked for."""

    def __init__(
        self,
        files: Mapping[str, Path],
        handles: Mapping[Path, Any],
        *,
        where: Path,
        seal: Seal | None,
    ) -> None:
        self._files = files
        self._handles = handles
        self._where = where
        self._seal = seal

    @property
    def names(self) -> Collection[str]:
        """The names of all tensors in the files."""
        return self._files.keys()

    def check(self, wanted: TensorBox) -> None:
        """Refuse a tensor that is missing, has another shape, or is not what was saved."""
        if wanted.name not in self._files:
            raise PlexError(
                ErrorCode.UNKNOWN_MODEL,
                f"{self._where} holds no tensor {wanted.name!r}; it has {len(self._files)} others. "
                "Check that the directory is a complete checkpoint of this architecture",
                tensor=wanted.name,
            )
        shape = tuple(self._slice(wanted.name).get_shape())
        if shape != wanted.shape:
            raise PlexError(
                ErrorCode.UNKNOWN_MODEL,
                f"{self._where}: tensor {wanted.name!r} has shape {shape}; the model has "
                f"{wanted.shape}. Check config.json against the weights",
                tensor=wanted.name,
            )
        if self._seal is not None:
            self._seal.check_box(self._files[wanted.name].name, wanted)

    def read(self, wanted: TensorBox) -> torch.Tensor:
        """Return one box of a tensor."""
        box = wanted.box.within(Box.whole(wanted.shape))
        found: torch.Tensor = self._slice(wanted.name)[box]
        return found

    def _slice(self, name: str) -> Any:
        return self._handles[self._files[name]].get_slice(name)


@contextlib.contextmanager
def open_checkpoint(
    directory: Path, *, pattern: str = MODEL, seal: Seal | None = None
) -> Iterator[TensorSource]:
    """Open the safetensors files of `directory` that match `pattern`; its seal may be read already.

    Raises:
        PlexError: `unknown_model` when there are none, or one cannot be read; `bad_request` for a
            path that cannot be looked at; `checkpoint_damaged` for one that is not whole.
    """
    from safetensors import SafetensorError, safe_open

    try:
        files = sorted(directory.glob(pattern))
    except (OSError, ValueError) as error:
        raise bad_request(
            f"cannot look for {pattern} in the given directory: {error}; give the path of a "
            "directory on the cluster's file system"
        ) from error
    if not files:
        raise PlexError(
            ErrorCode.UNKNOWN_MODEL,
            f"{directory} holds no {pattern}; give the path of a Hugging Face directory with "
            "safetensors weights on the cluster's file system",
            path=directory,
        )
    seal = seal or read_seal(directory)
    with contextlib.ExitStack() as stack:
        try:
            handles = {path: stack.enter_context(safe_open(path, "pt")) for path in files}
        except (OSError, SafetensorError) as error:
            raise PlexError(
                ErrorCode.UNKNOWN_MODEL, f"cannot read the weights in {directory}: {error}"
            ) from error
        named = {name: path for path, handle in handles.items() for name in handle.keys()}  # noqa: SIM118 - a safetensors handle does not iterate
        yield SafetensorsSource(named, handles, where=directory, seal=seal)


def read_scalars(directory: Path) -> dict[str, int | float | str]:
    """Return the scalars saved beside the optimizer state of `directory`.

    Raises:
        PlexError: `unknown_model` when the file is missing, or holds no whole numbers;
            `checkpoint_damaged` when it is not what was saved.
    """
    path = directory / STATE_FILE
    try:
        if path.exists() and (seal := read_seal(directory)) is not None:
            seal.check_file(STATE_FILE)
        found = paths.read_json(path, most_bytes=MAX_STATE_BYTES)
    except (OSError, ValueError) as error:
        raise PlexError(
            ErrorCode.UNKNOWN_MODEL,
            f"cannot read {path}: {error}; save with optimizer=True, or load with optimizer=False",
            path=path,
        ) from error
    scalars = found.get("scalars", found) if isinstance(found, dict) else {}
    plain = {k: value for k, value in scalars.items() if isinstance(value, int | float | str)}
    if not all(isinstance(value, int) for value in plain.values()):
        raise PlexError(
            ErrorCode.UNKNOWN_MODEL,
            f"{path} holds scalars {plain}; the optimizer's are whole numbers. Save it again",
            path=path,
        )
    return plain


class VersionTensors:
    """A published version as tensors of torch."""

    def __init__(self, published: Sequence[OpenedPart]) -> None:
        self._reader = VersionReader(published)

    @property
    def names(self) -> Collection[str]:
        """The names of all tensors in the opened parts."""
        return self._reader.names

    def check(self, wanted: TensorBox) -> None:
        """Refuse a box that the version's pieces do not cover, or of another shape."""
        tensor = self._reader.find(wanted.name)
        if tensor is None or tensor.shape != wanted.shape:
            raise PlexError(
                ErrorCode.UNKNOWN_MODEL,
                f"the weight version has {tensor.shape if tensor else 'nothing'} as "
                f"{wanted.name!r}; the model needs {wanted.shape}. Pull from a deployment of the "
                "same model",
                tensor=wanted.name,
            )
        if self._reader.cover(tensor, wanted.box).missing:
            raise PlexError(
                ErrorCode.UNKNOWN_MODEL,
                f"the weight version covers only part of {wanted.name!r} "
                f"{wanted.box.start}+{wanted.box.size}",
                tensor=wanted.name,
            )

    def read(self, wanted: TensorBox) -> torch.Tensor:
        """Return one box, assembled from the pieces that cover it."""
        import torch

        tensor = self._reader.find(wanted.name)
        assert tensor is not None, wanted
        bits = self._reader.read(tensor, wanted.box)
        return torch.from_numpy(bits).view(getattr(torch, DTYPES[tensor.dtype].torch))
