"""The analysis of what a run's links carried, on counters made by hand."""

import pytest

from controlplane.planner.plan.task import Edge, SumTree, Task
from evaluation.wan.apart import payload_bytes, taken_apart
from overlay.core.framing import FRAME_HEADERS, segment_bytes, tcp_framing
from overlay.core.message import HEADER_BYTES
from topologies.switches import InterfaceCounters

VALUES, CHUNK = 100_000, 10_000
NODES = ("h0", "h1")
TASK = Task(
    1, VALUES, (SumTree("h0", 0, VALUES, (Edge("h1", "h0"),), (Edge("h0", "h1"),), NODES, NODES),), chunk_values=CHUNK
)


def counters(sent: int) -> InterfaceCounters:
    return InterfaceCounters(0, 0, sent, 0)


def test_parts_of_a_link_sum_to_one_and_say_when_it_was_idle():
    segment = segment_bytes(1500)
    stream = 4 * VALUES + 10 * HEADER_BYTES
    own = stream + -(-stream // segment) * FRAME_HEADERS
    acknowledgements = 5_000
    links = {("dc1", "dc0"): 4.0, ("dc0", "dc1"): 8.0}
    # The link from dc1 begins after 0.2 s, carries everything in 0.9 s, and is idle at the end; the other is twice as
    # fast.
    samples = []
    for k in range(14):
        part = min(1.0, max(0.0, (k * 0.1 - 0.2) / 0.9))
        sent = counters(round(part * (own + acknowledgements)))
        samples.append((100 + k * 0.1, {("dc1", "dc0"): sent, ("dc0", "dc1"): counters(0)}))
    (parts,) = taken_apart(TASK, (100.0, 101.2), samples, links, segment)  # The fast link is not filled.
    assert parts.link == ("dc1", "dc0") and parts.planned == 1.0
    capacity = 4e6 / 8 * 1.2
    assert parts.payload == pytest.approx(4 * VALUES / capacity)
    assert parts.headers == pytest.approx((own - 4 * VALUES) / capacity)
    assert parts.rest == pytest.approx(acknowledgements / capacity, rel=1e-3)
    assert 0.2 <= parts.fill * 1.2 <= 0.31 and 0.0 <= parts.drain * 1.2 <= 0.11
    whole = parts.payload + parts.headers + parts.rest + parts.fill + parts.drain + parts.idle
    assert whole == pytest.approx(1.0)


def test_payload_counts_both_ways_and_every_hop():
    tree = SumTree("h0", 0, VALUES, (Edge("h2", "h0", ("h1",)),), (Edge("h0", "h2"),), ("h0", "h2"), ("h0", "h2"))
    carried = payload_bytes(Task(1, VALUES, (tree,), chunk_values=CHUNK))
    assert carried == dict.fromkeys((("h2", "h1"), ("h1", "h0"), ("h0", "h2")), (4 * VALUES, 10))


def test_framing_is_that_of_full_frames():
    framing = tcp_framing(4096)
    messages = 1 + HEADER_BYTES / (4 * 4096)
    assert 1 + framing.headers == pytest.approx(messages * 1514 / 1448)
    assert framing.acknowledgements == pytest.approx(messages * 66 / 2896)
    large = tcp_framing(4096, 9000)
    assert large.headers < 0.3 * framing.headers and large.acknowledgements < 0.2 * framing.acknowledgements


def test_a_task_without_samples_has_no_parts():
    links = {("dc1", "dc0"): 4.0, ("dc0", "dc1"): 8.0}
    sample = (100.0, dict.fromkeys(links, counters(0)))
    assert taken_apart(TASK, (100.0, 100.1), [sample], links, segment_bytes(1500)) == []
    still = taken_apart(TASK, (100.0, 100.1), [sample, (100.1, sample[1])], links, segment_bytes(1500))
    assert [parts.link for parts in still] == [("dc1", "dc0")]
