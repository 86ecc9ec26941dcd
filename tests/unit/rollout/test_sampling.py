"""Seeds: distinct for every sample and draw, and the same wherever they are computed."""

from __future__ import annotations

from plexsvc.rollout.sampling import SEED_MASK, draw_seed, root_of_seed, sample_seed


def test_every_sample_and_every_draw_has_its_own_seed() -> None:
    root = root_of_seed(3)
    samples = [
        sample_seed(root, prompt_index=p, sample_index=s) for p in range(50) for s in range(50)
    ]
    draws = [draw_seed(seed, position=i) for seed in samples[:50] for i in range(50)]
    assert len(set(samples)) == len(samples)
    assert len(set(draws)) == len(draws)
    assert all(0 <= seed <= SEED_MASK for seed in samples + draws)


def test_seeds_are_part_of_the_promise_and_never_change() -> None:
    assert sample_seed(root_of_seed(7), prompt_index=1, sample_index=2) == 2533775015636064008
    assert draw_seed(7, position=3) == 8675069503831562643
