"""Roots of tenants: where each may read and write."""

from __future__ import annotations

from pathlib import Path

import pytest

from plexclient.wire.v1 import operations_pb2 as ops
from plexclient.wire.v1 import service_pb2 as pb
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.ids import TenantId
from plexsvc.router.config import RouterConfig
from plexsvc.router.looks import Looks
from plexsvc.router.roots import Roots

A, B = TenantId("team-a"), TenantId("team-b")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    for name in ("models/tiny", "shared/big", "elsewhere"):
        (tmp_path / name).mkdir(parents=True)
    return tmp_path


@pytest.fixture
def roots(home: Path) -> Roots:
    return Roots(
        RouterConfig(
            model_roots=(home / "models",),
            checkpoint_root=home / "checkpoints",
            roots={A: (home / "shared",)},
        ),
        Looks(),
    )


def model(roots: Roots, name: str, *, tenant: TenantId = A) -> str:
    spec = pb.DeploymentSpec(model=name, model_root="/")
    place = roots.place_model(spec, tenant=tenant)
    assert (spec.model, spec.model_root) == (str(place.path), str(place.root))
    return spec.model


async def placed(roots: Roots, tenant: TenantId = A, **body: object) -> str:
    operation = ops.Operation(tenant=tenant, **body)  # type: ignore[arg-type] # fields of a message
    await roots.place_operation(operation)
    given = getattr(operation, next(iter(body)))
    assert Path(given.path).is_relative_to(given.root)
    return str(given.path)


def test_models_lie_below_the_roots_of_all_and_of_their_tenant(roots: Roots, home: Path) -> None:
    assert model(roots, "tiny") == model(roots, str(home / "models/tiny"), tenant=B)
    assert model(roots, "big") == str(home / "shared/big")
    for name in ("big", str(home / "shared/big"), str(home / "elsewhere"), "../elsewhere"):
        with pytest.raises(PlexError, match=r"outside the roots|no such directory") as caught:
            model(roots, name, tenant=B)
        assert caught.value.code is ErrorCode.UNKNOWN_MODEL


@pytest.mark.parametrize("name", ["", "nowhere", "a\0b"])
def test_a_model_that_is_not_there_is_refused_by_its_name(roots: Roots, name: str) -> None:
    with pytest.raises(PlexError) as caught:
        model(roots, name)
    assert caught.value.code is ErrorCode.UNKNOWN_MODEL
    assert repr(name) in caught.value.message


def test_a_refusal_names_the_option_that_opens_a_directory(roots: Roots, home: Path) -> None:
    with pytest.raises(PlexError, match=r"plexctl up --root DIR.*\[router\.roots\]"):
        model(roots, str(home / "elsewhere"))


async def test_relative_paths_lie_in_the_tenant_s_own_directory(roots: Roots, home: Path) -> None:
    own = home / "checkpoints" / A
    assert await placed(roots, save=ops.Save(path="run/step-1")) == str(own / "run/step-1")
    assert await placed(roots, load=ops.Load(path="run/step-1")) == str(own / "run/step-1")
    theirs = await placed(roots, B, export=ops.Export(path="run/step-1"))
    assert theirs == str(home / "checkpoints" / B / "run/step-1")
    (own / "done").mkdir()
    assert model(roots, "done") == str(own / "done")


async def test_nobody_writes_among_the_models_or_into_another_tenant_s(
    roots: Roots, home: Path
) -> None:
    for path in ("models/tiny", "models/new", f"checkpoints/{B}/x", "checkpoints/x", "elsewhere/x"):
        with pytest.raises(PlexError, match=rf"save by tenant '{A}'") as caught:
            await placed(roots, save=ops.Save(path=str(home / path)))
        assert caught.value.code is ErrorCode.BAD_REQUEST
    with pytest.raises(PlexError, match="outside"):
        await placed(roots, load=ops.Load(path=str(home / f"checkpoints/{B}/x")))
    loaded = await placed(roots, load=ops.Load(path=str(home / "models/tiny")))
    assert loaded == str(home / "models/tiny")


async def test_a_router_that_knows_no_roots_takes_no_path(home: Path) -> None:
    roots = Roots(RouterConfig(), Looks())
    with pytest.raises(PlexError, match=r"roots \(none\)"):
        model(roots, str(home / "models/tiny"))
    with pytest.raises(PlexError, match=r"roots \(none\)"):
        await placed(roots, save=ops.Save(path=str(home / "x")))


def checkpoints_of(roots: Roots, tenant: TenantId, *, every: int = 2) -> str:
    spec = pb.DeploymentSpec(checkpoint_every=every, checkpoint_root="s3://theirs")
    roots.place_checkpoints(spec, tenant=tenant)
    return spec.checkpoint_root


async def test_a_tenant_s_checkpoints_go_to_the_store_that_the_operator_named(home: Path) -> None:
    store = f"file://{home}/store"
    roots = Roots(
        RouterConfig(checkpoint_root=home / "checkpoints", checkpoint_stores={A: store}), Looks()
    )
    assert checkpoints_of(roots, A) == f"{store}/{A}"
    assert checkpoints_of(roots, B) == str(home / "checkpoints" / B)
    assert checkpoints_of(roots, A, every=0) == ""
    attempt = home / "store" / A / "job-1/actor@2~aa"
    attempt.mkdir(parents=True)
    (attempt / ".complete").write_text("{}")
    load = ops.Operation(tenant=A, load=ops.Load(path="job-1/actor@2", root="s3://theirs"))
    await roots.place_operation(load)
    assert (load.load.path, load.load.root) == (f"{store}/{A}/job-1/actor@2~aa", f"{store}/{A}")
    own = home / "checkpoints"
    assert await placed(roots, B, load=ops.Load(path="job-1/actor@2")) == f"{own / B}/job-1/actor@2"
    (own / A / "job-1/actor@2").mkdir(parents=True)
    assert await placed(roots, load=ops.Load(path="job-1/actor@2")) == f"{own / A}/job-1/actor@2"


@pytest.mark.parametrize(
    "path", ["s3://bucket/job-1/actor@2", "file:///etc/x@1", "http://169.254.169.254/x@1"]
)
async def test_a_url_that_a_tenant_names_is_a_path_like_others(home: Path, path: str) -> None:
    stores: dict[str, str] = {A: f"file://{home}/store"}
    config = RouterConfig(checkpoint_root=home / "checkpoints", checkpoint_stores=stores)
    for body in ({"load": ops.Load(path=path)}, {"save": ops.Save(path=path)}):
        found = await placed(Roots(config, Looks()), **body)
        assert found == str(home / "checkpoints" / A / path)


def test_a_store_without_a_url_is_refused() -> None:
    with pytest.raises(PlexError, match="'team-a' has '/data/x', which is no URL"):
        RouterConfig(checkpoint_stores={A: "/data/x"})
