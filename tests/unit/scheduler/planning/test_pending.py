"""The pending table against exact fractions."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from plexsvc.ids import JobId
from plexsvc.scheduler.core.planning.pending import PendingTable

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["add", "add", "add", "remove", "resident"]),
        st.integers(0, 4),
        st.integers(0, 10**7),
        st.integers(0, 10**6),
        st.integers(0, 10**6),
    ),
    max_size=60,
)


@settings(deadline=None)
@given(STEPS)
def test_the_pick_has_the_highest_exact_ratio_of_all(
    steps: list[tuple[str, int, int, int, int]],
) -> None:
    table: PendingTable[int] = PendingTable(capacity=2)
    rows: dict[int, tuple[JobId, int, int, int]] = {}
    resident: JobId | None = None
    now_us = 10**7
    for number, (kind, job, since, service, setup) in enumerate(steps):
        job_id = JobId(str(job))
        if kind == "add":
            rows[number] = (job_id, since, service, setup)
            table.add(number, job_id=job_id, since_us=since, service_us=service, setup_us=setup)
        elif kind == "resident":
            resident = job_id
            table.set_resident(job_id)
        elif rows:
            key = list(rows)[job % len(rows)]
            del rows[key]
            table.remove(key)

    def ratio(key: int) -> Fraction:
        owner, since, service, setup = rows[key]
        effective = max(1, service + (0 if owner == resident else setup))
        return Fraction(now_us - since + effective, effective)

    assert len(table) == len(rows)
    if rows:
        picked = table.pick(now_us=now_us)
        assert ratio(picked) == max(ratio(key) for key in rows)
