"""A tree's directions and lanes (worker_agent/native/direction.h) meet nowhere in a switch, so what the search and the
random schedules show of a tree holds for each of them.
"""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from p4src.protocol import Flag
from tests.model.packet import Packet, decode
from tests.model.switch import Aggregate, Switch
from tests.support.examples import examples

VALUES, FLOWS, MOST = 2, 3, 32


def switch(slots: int) -> Switch:
    """An aggregation point of three flows, with so many slots."""
    everyone = (1 << FLOWS) - 1
    labels = {(flow, 1): Aggregate(0, slots - 1, 1 << flow, everyone, 2, 3, 9) for flow in range(FLOWS)}
    return Switch(VALUES, slots, dict(labels))


packets = st.tuples(
    st.integers(0, FLOWS - 1),
    st.integers(0, MOST - 1),
    st.integers(0, 20),
    st.integers(1, 2),
    st.sampled_from([0, int(Flag.RESEND), int(Flag.MAXIMUM)]),
    st.integers(0, 99),
)


@settings(max_examples=examples(300), deadline=None)
@given(st.sampled_from([2, 4, MOST]), st.sampled_from([1, 2, 4]), st.lists(packets, max_size=60))
def test_a_switch_is_to_each_direction_and_lane_one_of_its_own_with_its_part_of_the_slots(
    ways: int, part: int, sent: list[tuple[int, int, int, int, int, int]]
) -> None:
    """ways: directions times lanes."""
    shared, own = switch(ways * part), [switch(part) for _ in range(ways)]
    for flow, number, sequence, epoch, flags, value in sent:
        way = number % ways
        packet = Packet(1, epoch, sequence, 0, (value,) * VALUES, flags)
        numbered = packet._replace(sequence=ways * sequence + way)
        alone = [decode(frame, VALUES) for _, frame in own[way].process(flow, packet.encode())]
        together = [decode(frame, VALUES) for _, frame in shared.process(flow, numbered.encode())]
        assert together == [left._replace(sequence=ways * left.sequence + way) for left in alone if left is not None]
    assert shared.verdicts == sum((one.verdicts for one in own[1:]), own[0].verdicts)
