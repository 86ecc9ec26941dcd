"""Messages cut into parcels come out as they went in."""

from __future__ import annotations

from contextlib import aclosing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plexclient.wire.v1 import reward_pb2 as pb
from plexsvc.reward.messages import Said, StageDone, Warm, encode
from plexsvc.reward.parcels import PARCEL_BYTES, Outbox, ParcelReader

MESSAGES = st.lists(
    st.builds(Warm, st.lists(st.text(max_size=5), max_size=3).map(tuple))
    | st.builds(
        Said, st.integers(0, 9), st.text(max_size=5) | st.builds(StageDone, st.just("passed"))
    ),
    max_size=8,
)


@given(sent=MESSAGES, cuts=st.lists(st.integers(1, 9), min_size=1, max_size=9))
def test_a_stream_cut_anywhere_gives_its_messages(sent: list[Warm | Said], cuts: list[int]) -> None:
    stream, inbox = b"".join(map(encode, sent)), ParcelReader()
    found: list[object] = []
    while stream:
        for nbytes in cuts:
            piece, stream = stream[:nbytes], stream[nbytes:]
            found += inbox.take(pb.RewardParcel(data=piece).SerializeToString())
    assert found == sent


@pytest.mark.parametrize(
    "parcel",
    [b"\xff\xff", pb.RewardParcel(data=b"\x04\x00\x00\x00\xc1\xc1\xc1\xc1").SerializeToString()],
)
def test_what_is_no_message_is_said_to_be_none(parcel: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - of either library
        list(ParcelReader().take(parcel))


async def test_large_messages_go_in_several_parcels_and_small_ones_together() -> None:
    outbox, inbox = Outbox(), ParcelReader()
    large = Said(1, StageDone("passed", files={"a": bytes(2 * PARCEL_BYTES)}))
    for message in (Warm(("a",)), Warm(("b",)), large):
        outbox.put(message)
    found: list[object] = []
    parcels = 0
    async with aclosing(outbox.parcels()) as stream:
        async for parcel in stream:
            parcels += 1
            found += inbox.take(parcel)
            if len(found) == 3:
                break
    assert found == [Warm(("a",)), Warm(("b",)), large]
    assert parcels == 1 + 3, "the first is empty: it says that the line is there"
