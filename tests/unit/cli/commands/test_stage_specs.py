"""Stages on a command line: what is read, and what is refused."""

from __future__ import annotations

import pytest

from plexclient.errors import ErrorCode, PlexError
from plexclient.programs import Stage
from plexsvc.cli.commands.stage_specs import parse


def test_a_stage_is_read_with_its_limits() -> None:
    assert parse("compile:cpu=2,mem=2GiB,timeout=1.5m:./compile.sh a:b") == Stage(
        name="compile",
        command="./compile.sh a:b",
        timeout_s=90,
        resource="cpu",
        count=2,
        memory_bytes=2 << 30,
    )
    assert parse("run:cpu=1,timeout=500ms,untrusted:./x").is_untrusted


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("run:cpu=1:./x", "no timeout"),
        ("run:timeout=1s:./x", "no resource"),
        ("run:cpu=1,timeout=1:./x", None),
        ("run:cpu=1,timeout=1y:./x", "'1y' is not a time"),
        ("run:cpu=1,timeout=1s,mem=2GB:./x", "'2GB' is not a size"),
        ("run:cpu=one,timeout=1s:./x", "'one' is not a count"),
        ("run", "no timeout"),
    ],
)
def test_what_is_no_stage_is_refused_with_the_form(text: str, reason: str | None) -> None:
    with pytest.raises(PlexError, match=reason or "is not a time") as refused:
        parse(text)
    assert refused.value.code is ErrorCode.BAD_REQUEST
    assert "NAME:RESOURCE=COUNT" in refused.value.message
