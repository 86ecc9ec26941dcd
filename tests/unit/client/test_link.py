"""Connections to one of several routers, and addresses that are none."""

from __future__ import annotations

import traceback

import pytest

import plexclient as plex
from plexsvc.errors import ErrorCode
from tests.fakes.fake_router import TOKEN, FakeRouter, Fault
from tests.rigs.chaos_proxy import Faults, running_proxy


@pytest.mark.usefixtures("router")
@pytest.mark.parametrize(
    "address", ["", "here", "here:0", "here:1,", "here:1,there", "here:x,there:1"]
)
def test_an_address_without_a_port_is_refused(address: str) -> None:
    with pytest.raises(plex.PlexError) as refused:
        plex.connect(address, token=TOKEN)
    assert refused.value.code == ErrorCode.BAD_REQUEST


@pytest.mark.usefixtures("router")
def test_a_host_among_several_that_nobody_knows_is_refused_by_name() -> None:
    with pytest.raises(plex.PlexError, match=r"nowhere\.invalid"):
        plex.connect("127.0.0.1:1,nowhere.invalid:1", token=TOKEN)


def test_a_client_goes_over_to_the_next_address_and_runs_nothing_twice(router: FakeRouter) -> None:
    with running_proxy(router.address, seed=1, faults=Faults()) as second:
        with running_proxy(router.address, seed=1, faults=Faults()) as first:
            nobody, port = "127.0.0.1:1", first.address.rpartition(":")[2]
            addresses = f"{nobody},localhost:{port},{second.address}"
            cluster = plex.connect(addresses, token=TOKEN)
            job = cluster.job("moves").__enter__()
            actor = job.deploy("actor", model="/model", backend="noop", optimizer=plex.AdamW())
            actor.noop()
            assert (first.counts.connections, second.counts.connections) == (1, 0)
        with cluster, job:
            actor.noop()
            assert second.counts.connections == 1
    assert router.lanes[f"{job.job_id}/actor"].applied == [(1, "noop"), (2, "noop")]


def test_a_refusal_is_shown_without_what_grpc_says_of_it(router: FakeRouter) -> None:
    router.fail("CreateJob", Fault(refuse=plex.PlexError(ErrorCode.BAD_REQUEST, "a name too long")))
    with (
        pytest.raises(plex.PlexError) as refused,
        plex.connect(router.address, token=TOKEN) as cluster,
        cluster.job("refused"),
    ):
        pass
    shown = "".join(traceback.format_exception(refused.value))
    assert shown.count("a name too long") == 1
