"""Which model runners draw by position already, which are made to, and which are refused."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from plexsvc.errors import PlexError
from plexsvc.rollout.engines.drawing import DRAW_ORIGIN, GENERATED, draw_by_position
from plexsvc.rollout.sampling import draw_seed


def test_a_runner_that_draws_by_position_is_left_alone() -> None:
    v2 = SimpleNamespace(sampler=SimpleNamespace(sampling_states=SimpleNamespace(seeds=object())))
    before = dict(vars(v2))
    draw_by_position(v2)
    assert vars(v2) == before


def test_a_runner_with_generators_has_them_seeded_for_the_next_position() -> None:
    seeds: list[int] = []
    added: list[SimpleNamespace] = []
    request = SimpleNamespace(
        generator=SimpleNamespace(manual_seed=seeds.append),
        sampling_params=SimpleNamespace(seed=9, extra_args={DRAW_ORIGIN: 4}),
        num_computed_tokens=6,
    )
    v1 = SimpleNamespace(
        sampler=SimpleNamespace(),
        requests={"r": request},
        input_batch=SimpleNamespace(generators={0: "running"}, add_request=added.append),
        _update_states=lambda _scheduled: "updated",
    )
    v1._bookkeeping_sync = lambda: dict(v1.input_batch.generators)
    draw_by_position(v1)
    assert v1._update_states(SimpleNamespace(num_scheduled_tokens={"r": 1})) == "updated"
    assert seeds == [draw_seed(9, position=3)]
    v1.input_batch.add_request(
        SimpleNamespace(
            sampling_params=SimpleNamespace(extra_args={GENERATED: [5, 6]}), output_token_ids=[]
        )
    )
    assert [state.output_token_ids for state in added] == [[5, 6]], "of the answer, not the prompt"
    assert v1._bookkeeping_sync() == {}, "a draw of an unfinished prefill would be taken back"
    assert v1.input_batch.generators == {0: "running"}


def test_an_unknown_runner_is_refused_by_name() -> None:
    with pytest.raises(PlexError, match=r"bad_request.*SimpleNamespace.*not known"):
        draw_by_position(SimpleNamespace(sampler=None))
