"""Packet input and output: lanes on threads, and the errors when a kernel or an interface does not allow
it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether

from evaluation.hosts.network import run
from evaluation.hosts.star import TreeShape
from p4src.protocol import GROUP, GROUP_MAC, PROTOCOL
from tests.hosts.conftest import WORKERS
from tests.hosts.rig import DEADLINE, Rig
from tests.hosts.test_allreduce import reduce_and_check
from tests.support.waiting import wait_until
from worker_agent import ProgressTimeoutError
from worker_agent.io_options import MOST_THREADS, IoOptions, assign, threads_for

MakeRig = Callable[..., Rig]
ONE = (TreeShape(0, 1.0, True),)


@example([(0, 0.0), (1, 0.0)], 2)  # Trees that are not paced have no weight.
@given(
    st.lists(st.tuples(st.integers(0, 15), st.floats(0, 100)), min_size=1, max_size=40), st.integers(1, MOST_THREADS)
)
def test_trees_of_a_port_share_a_thread_and_no_thread_idles(trees: list[tuple[int, float]], threads: int) -> None:
    ports = {port for port, _ in trees}
    threads = min(threads, len(ports))
    given = assign(trees, threads)
    assert len(given) == len(trees)
    assert len({(port, thread) for (port, _), thread in zip(trees, given, strict=True)}) == len(ports)
    assert set(given) == set(range(threads))


@given(st.lists(st.floats(1, 100), min_size=2, max_size=16), st.integers(2, 8))
def test_no_thread_has_much_more_than_its_share(weights: list[float], threads: int) -> None:
    trees = list(enumerate(weights))
    loads = [0.0] * threads
    for (_, weight), thread in zip(trees, assign(trees, threads), strict=True):
        loads[thread] += weight
    # Graham's bound for heaviest-first scheduling holds, against the larger of the mean and the heaviest.
    assert max(loads) <= (4 / 3) * 2 * max(sum(weights) / threads, *weights)


def test_one_thread_is_the_default_where_one_suffices() -> None:
    assert threads_for(0) == threads_for(200) == threads_for(10_000) == 1
    assert threads_for(1e6) == len(os.sched_getaffinity(0))


def test_options_come_from_the_environment_and_are_checked() -> None:
    assert IoOptions.from_environment({}) == IoOptions()
    assert IoOptions.from_environment({"INART_THREADS": "2", "INART_DSCP": "32"}) == IoOptions(2, dscp=32)
    for wrong in ({"INART_THREADS": "99"}, {"INART_THREADS": "all"}, {"INART_DSCP": "64"}):
        with pytest.raises(ValueError, match="INART_THREADS, INART_DSCP"):
            IoOptions.from_environment(wrong)


def test_an_mtu_that_becomes_too_small_is_reported(make_rig: MakeRig) -> None:
    rig = make_rig(ONE, timeout=1.0)
    namespace = rig.network.hosts["w1"]
    run("ip", "-n", namespace, "link", "set", "dev", "data0", "mtu", "200")
    try:
        works = rig.submit([np.ones(5000, np.float32) for _ in range(WORKERS)])
        with pytest.raises(ProgressTimeoutError, match=r"MTU of data0 is 200.*ip link set data0 mtu 308"):
            works[1].wait(DEADLINE)
        assert rig.engines[1].stats().send_errors > 0
    finally:
        run("ip", "-n", namespace, "link", "set", "dev", "data0", "mtu", "1500")
    rig.renew(epoch=2)
    reduce_and_check(rig, 1, 5000)


def test_super_frames_of_other_sizes_are_malformed_packet_by_packet(make_rig: MakeRig) -> None:
    rig = make_rig(ONE, anybody=True)
    port = rig.job.workers[0].worker_trees[0].port
    packet = PROTOCOL.udp_length(64) - 8
    raw = rig.raw_port("w0")

    def super_frame(payload: int) -> bytes:
        ip = IP(src="10.9.3.1", dst=str(GROUP), flags="DF", ttl=64)
        ethernet = Ether(dst=GROUP_MAC.hex(":"), src="02:00:00:00:09:09")
        return bytes(ethernet / ip / UDP(sport=9, dport=port) / bytes(payload))

    expected = 0
    for segment, payload, malformed in (
        (100, 1000, 10),
        (packet - 4, 4 * (packet - 4), 4),
        (packet, 2 * packet + 7, 3),
    ):
        raw.send_super(super_frame(payload), segment)  # All have version 0, and the last one is short.
        expected += malformed
    wait_until(lambda: rig.engines[0].stats().malformed == expected, "each packet is counted")
    reduce_and_check(rig, 1, 5000)


def test_a_small_receive_buffer_is_reported(make_rig: MakeRig, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "inart"):
        rig = make_rig(ONE, io=IoOptions(receive_bytes=8192))
    assert any("sysctl -w net.core.rmem_max" in record.getMessage() for record in caplog.records)
    assert rig.engines[0].stats().io.receive_buffer < 20_000
    reduce_and_check(rig, 1, 20_000)  # This loses packets and recovers.
