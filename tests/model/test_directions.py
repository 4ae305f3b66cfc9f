"""A tree's two directions (worker_agent/native/direction.h) meet nowhere in a switch, so what the search and the random
schedules show of a tree holds for each of them.
"""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from p4src.protocol import Flag
from tests.model.packet import Packet, decode
from tests.model.switch import Aggregate, Switch
from tests.support.examples import examples

VALUES, FLOWS, DIRECTIONS = 2, 3, 2


def switch(slots: int) -> Switch:
    """An aggregation point of three flows, with so many slots."""
    everyone = (1 << FLOWS) - 1
    labels = {(flow, 1): Aggregate(0, slots - 1, 1 << flow, everyone, 2, 3, 9) for flow in range(FLOWS)}
    return Switch(VALUES, slots, dict(labels))


packets = st.tuples(
    st.integers(0, FLOWS - 1),
    st.integers(0, DIRECTIONS - 1),
    st.integers(0, 20),
    st.integers(1, 2),
    st.sampled_from([0, int(Flag.RESEND), int(Flag.MAXIMUM)]),
    st.integers(0, 99),
)


@settings(max_examples=examples(300), deadline=None)
@given(st.sampled_from([1, 2, 4]), st.lists(packets, max_size=60))
def test_a_switch_is_to_each_direction_one_of_its_own_with_half_of_the_slots(
    half: int, sent: list[tuple[int, int, int, int, int, int]]
) -> None:
    shared, own = switch(DIRECTIONS * half), [switch(half) for _ in range(DIRECTIONS)]
    for flow, direction, sequence, epoch, flags, value in sent:
        packet = Packet(1, epoch, sequence, 0, (value,) * VALUES, flags)
        numbered = packet._replace(sequence=DIRECTIONS * sequence + direction)
        alone = [decode(frame, VALUES) for _, frame in own[direction].process(flow, packet.encode())]
        together = [decode(frame, VALUES) for _, frame in shared.process(flow, numbered.encode())]
        assert together == [
            left._replace(sequence=DIRECTIONS * left.sequence + direction) for left in alone if left is not None
        ]
    assert shared.verdicts == sum((one.verdicts for one in own[1:]), own[0].verdicts)
