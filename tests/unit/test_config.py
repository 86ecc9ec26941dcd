from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from plexsvc import config
from plexsvc.errors import PlexError
from plexsvc.fixed import Fixed


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner:
    name: str
    nbytes: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Outer:
    rate: float = 1.0
    home: Path | None = None
    parts: tuple[Inner, ...] = ()
    tokens: dict[str, str] = field(default_factory=dict)
    max_tries: Fixed[int] = 3


def test_a_full_table_becomes_the_dataclass(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text('rate = 2\nhome = "/x"\n[[parts]]\nname = "a"\n[tokens]\nt = "u"\n')
    assert config.load(path, Outer) == Outer(
        rate=2.0, home=Path("/x"), parts=(Inner(name="a"),), tokens={"t": "u"}
    )


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("rat = 2", "unknown key 'rat'"),
        ('rate = "fast"', "rate: 'fast' is not a number"),
        ("[[parts]]\nname = 3", "parts[0].name: 3 is not a text in quotes"),
        ('[[parts]]\nname = "a"\nnbytes = true', "parts[0].nbytes: True is not a whole number"),
        ("parts = 3", "parts: 3 is not a list"),
        ("max_tries = 5", "unknown key 'max_tries'; it may hold home, parts, rate, tokens"),
        ("rate =", "cannot read"),
        ("rate = -0.5", "rate: -0.5 is below 0"),
        ("rate = nan", "rate: nan is below 0"),
        ('[[parts]]\nname = "a"\nnbytes = -5', "parts[0].nbytes: -5 is below 0"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(tmp_path: Path, text: str, named: str) -> None:
    path = tmp_path / "c.toml"
    path.write_text(text)
    with pytest.raises(PlexError) as caught:
        config.load(path, Outer)
    assert caught.value.code == "bad_request"
    assert named in caught.value.message
