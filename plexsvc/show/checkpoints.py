"""Tables of checkpoints."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from rich.console import Group, RenderableType
from rich.text import Text

from plexclient.wire.v1 import service_pb2
from plexsvc.show.status import table_of
from plexsvc.show.tokens import time_of

_MIB: Final = 1 << 20


def checkpoints_view(checkpoints: Iterable[service_pb2.Checkpoint]) -> RenderableType:
    """Return the table of `plexctl ckpt list`."""
    table = table_of("checkpoint", "job", "step", "MiB", "made", "model")
    for one in checkpoints:
        table.add_row(
            one.name,
            one.job,
            str(one.step),
            f"{one.nbytes / _MIB:.1f}",
            time_of(one.made_us),
            one.spec.model,
        )
    return table


def checkpoint_view(one: service_pb2.Checkpoint) -> RenderableType:
    """Return what `plexctl ckpt show` prints."""
    files = table_of("file", "bytes")
    for file in one.files:
        files.add_row(file.name, str(file.nbytes))
    spec = one.spec
    what = f"{spec.role} on {spec.backend} of {spec.model}, position {one.position or 'not said'}"
    return Group(checkpoints_view([one]), Text(what), files)
