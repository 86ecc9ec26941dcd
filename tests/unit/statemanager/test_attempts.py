"""Attempts: a checkpoint of a store is whole or is not seen, and what is left of others goes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from plexsvc.errors import ErrorCode, PlexError
from plexsvc.statemanager import checkpoints, shards
from plexsvc.statemanager.caller import WaitingCaller
from plexsvc.weights import object_store
from plexsvc.weights.checkpoints import Sealed
from tests.unit.statemanager.test_checkpoints import snapshot


def save(
    store: Path, name: str, *, kept: int = 0, meanwhile: Callable[[str], object] | None = None
) -> checkpoints.Written:
    """Write a checkpoint of two tensors; `meanwhile` its attempt is done with these."""
    state, caller = snapshot(), WaitingCaller()

    def write(target: Path | str, plan: shards.Plan) -> dict[str, Sealed]:
        sealed = shards.write(
            state, target, [one for some in plan.values() for one in some], caller
        )
        if meanwhile is not None:
            meanwhile(str(target))
        return sealed

    return checkpoints.materialize(
        state,
        f"file://{store}/job/{name}",
        model=None,
        optimizer=False,
        caller=caller,
        tenant="lab",
        kept=kept,
        write=write,
    )


def sealed(store: Path) -> list[str]:
    found = object_store.attempts(f"file://{store}")
    assert all(one.made_us for one in found), "nothing but whole ones is left"
    return sorted(one.name for one in found)


def test_a_checkpoint_is_seen_when_all_of_it_is_there(tmp_path: Path) -> None:
    def look(target: str) -> None:
        assert Path(target.removeprefix("file://"), "model.safetensors").stat().st_size
        assert object_store.find(f"file://{tmp_path}", "job/actor@2") == ""

    written = save(tmp_path, "actor@2", meanwhile=look)
    assert written.files == ("model.safetensors",)
    url = object_store.find(f"file://{tmp_path}", "job/actor@2")
    with object_store.opened(url, "", tenant="lab", keeps=False) as (_, seal):
        assert seal is not None
        seal.check_file("model.safetensors")


def test_the_newest_of_a_series_stay(tmp_path: Path) -> None:
    for name in ("actor@2", "critic@2", "actor@4", "actor@6"):
        save(tmp_path, name, kept=2)
    assert sealed(tmp_path) == ["job/actor@4", "job/actor@6", "job/critic@2"]
    save(tmp_path, "actor@6", kept=1)
    assert sealed(tmp_path) == ["job/actor@6", "job/critic@2"]


def test_what_a_kill_left_goes_with_the_next_of_its_deployment(tmp_path: Path) -> None:
    for left in ("actor@4~0a0a0a0a", "critic@4~0b0b0b0b"):
        (tmp_path / "job" / left).mkdir(parents=True)
        (tmp_path / "job" / left / "model.safetensors").write_bytes(b"half")
    save(tmp_path, "actor@6")
    found = {one.name for one in object_store.attempts(f"file://{tmp_path}")}
    assert found == {"job/actor@6", "job/critic@4"}


@pytest.mark.parametrize("is_removed", [True, False], ids=["removed", "cut"])
def test_an_attempt_of_which_something_is_lost_is_not_sealed(
    tmp_path: Path, is_removed: bool
) -> None:
    save(tmp_path, "actor@2")

    def lose(target: str) -> None:
        path = Path(target.removeprefix("file://"), "model.safetensors")
        path.unlink() if is_removed else path.write_bytes(b"cut")

    with pytest.raises(PlexError, match=r"actor@4~.*/model\.safetensors has") as refused:
        save(tmp_path, "actor@4", kept=1, meanwhile=lose)
    assert refused.value.code is ErrorCode.UNAVAILABLE
    assert sealed(tmp_path) == ["job/actor@2"]


def test_an_attempt_that_fails_is_removed(tmp_path: Path) -> None:
    def fail(_: str) -> None:
        raise PlexError(ErrorCode.CANCELLED, "left")

    with pytest.raises(PlexError, match="left"):
        save(tmp_path, "actor@2", meanwhile=fail)
    assert sealed(tmp_path) == []
