"""Operations that cannot work end with an error that says what is wrong, on every worker, and work continues after a
new epoch.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import random
import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether

from controlplane.common.native_build import BuildError, build, check_sizes, load
from evaluation.hosts.network import StarNetwork, inside, run
from evaluation.hosts.star import TreeShape, star
from p4src.protocol import GROUP, GROUP_MAC, HEADER_OFFSET, IPV4_OFFSET, UDP_OFFSET, Flag, frame_bytes
from ps_server.server import Server
from tests.hosts.checked import Checked
from tests.hosts.conftest import WORKERS
from tests.hosts.raw import checksum
from tests.hosts.rig import DEADLINE, Rig, check, finish, tensors
from tests.hosts.test_allreduce import VALUES, reduce_and_check, starts
from tests.support.waiting import wait_until
from worker_agent import AbortedError, AgentError, MismatchError, ProgressTimeoutError
from worker_agent.engine import Engine
from worker_agent.operands import host_array
from worker_agent.wire import packet

MakeRig = Callable[..., Rig]


def malformed_packets(generator: random.Random, good: bytes, port: int) -> Iterator[bytes]:
    """Yield UDP payloads to the group and `port` that are no valid packet; `good`: a valid one."""

    def frame(payload: bytes) -> bytes:
        ip = IP(src="10.9.3.1", dst=str(GROUP), flags="DF", ttl=64)
        return bytes(Ether(dst=GROUP_MAC.hex(":"), src="02:00:00:00:09:09") / ip / UDP(sport=9, dport=port) / payload)

    while True:
        kind = generator.randrange(4)
        if kind == 0:
            yield frame(generator.randbytes(generator.randrange(0, 1400)))
        elif kind == 1:
            yield frame(good[: generator.randrange(0, len(good))])
        elif kind == 2:
            yield frame(good + generator.randbytes(generator.randrange(1, 200)))
        else:
            yield frame(bytes([generator.randrange(3, 256)]) + good[1:])  # version


def broken_frames(generator: random.Random, good: bytes) -> Iterator[bytes]:
    """Yield frames to our port that are no whole UDP datagrams: a kernel drops them before any UDP socket."""
    while True:
        ip = bytearray(good[IPV4_OFFSET:UDP_OFFSET])
        kind, rest = generator.randrange(3), good[UDP_OFFSET:]
        if kind == 0:  # This is a fragment without its beginning, or without its end.
            struct.pack_into(">H", ip, 6, generator.choice([0x2000, 0x2001, 5]))
        elif kind == 1:
            struct.pack_into(">H", ip, 2, len(good) + generator.randrange(1, 500))
        else:
            rest = rest[:4] + struct.pack(">H", len(rest) + generator.randrange(1, 500)) + rest[6:]
        struct.pack_into(">H", ip, 10, 0)
        struct.pack_into(">H", ip, 10, checksum(bytes(ip)))
        yield good[:IPV4_OFFSET] + bytes(ip) + rest


def hostile_frames(generator: random.Random, rig: Rig, result: bool) -> Iterator[bytes]:
    """Yield well-formed packets that nobody may count: with unknown labels, other jobs and epochs, or the wrong
    direction.
    """
    config = rig.job.workers[0]
    tree = config.worker_trees[0]
    good: dict[str, Any] = {
        "job": config.job_id,
        "epoch": config.epoch,
        "sequence": 0,
        "bitmap": (1 << WORKERS) - 1,
        "label": tree.return_label if result else rig.job.servers[0].root_trees[0].flows[0].label,
        "flags": int(Flag.RESULT) if result else 0,
        "port": tree.port,
    }
    bad: list[dict[str, Any]] = [
        {"label": 0xDEAD},
        {"job": 9},
        {"epoch": config.epoch + 1},
        {"epoch": 0},
        {"bitmap": 0},
        {"bitmap": 1 << 63},
        {"flags": good["flags"] ^ Flag.RESULT},
        {"sequence": 1 << 31},
    ]
    while True:
        values = [generator.randrange(-(2**31), 2**31) for _ in range(64)]
        yield bytes(packet(values, **{**good, **generator.choice(bad)}))


def test_malformed_and_foreign_packets_are_counted_and_change_nothing(make_rig: MakeRig) -> None:
    rig = make_rig(rate_mbps=60, anybody=True)
    generator = random.Random(1)
    to_worker, to_server = rig.raw_port("w0"), rig.raw_port("s0")
    port = rig.job.workers[0].worker_trees[0].port
    good = bytes(packet([0] * 64, port=port, address="10.9.3.1"))
    assert len(good) == frame_bytes(64)
    malformed = list(itertools.islice(malformed_packets(generator, good[HEADER_OFFSET:], port), 200))
    broken = list(itertools.islice(broken_frames(generator, good), 200))
    foreign = [list(itertools.islice(hostile_frames(generator, rig, result), 200)) for result in (True, False)]
    before = tensors(1, WORKERS, 100_000)
    after = [tensor.copy() for tensor in before]
    works = rig.submit(after)
    sent = 0
    while not all(work.done() for work in works) and sent < 20_000:
        for raw, frames in zip((to_worker, to_server), foreign, strict=True):
            raw.send(malformed[sent % 200])
            raw.send(broken[sent % 200])
            raw.send(frames[sent % 200])
        sent += 1
    finish(works)
    check(before, after, starts(rig, 100_000), VALUES)
    assert sent > 100
    wait_until(lambda: rig.engines[0].stats().malformed == sent, "the worker has counted the malformed packets")
    wait_until(lambda: rig.servers[0].stats().malformed == sent, "the server has counted the malformed packets")
    worker, server = rig.engines[0].stats(), rig.servers[0].stats()
    assert worker.unknown > 0 and worker.other_epoch > 0
    assert server.unknown > 0 and server.other_epoch > 0
    assert sum(tree.refused for tree in server.trees) > 0
    reduce_and_check(rig, 2, 1000)


def test_packets_for_another_group_port_or_source_are_ignored(make_rig: MakeRig) -> None:
    """Packets that would be contributions at their right destination are counted by nobody elsewhere."""
    rig = make_rig((TreeShape(),), workers=1, without=["w0", "s1"])
    server, to_server, own = rig.servers[0], rig.raw_port("s0"), rig.job.servers[0]
    with inside(rig.network.hosts["s0"]):
        link = json.loads(run("ip", "-json", "link", "show", "dev", "data0"))[0]
    label, port, tree = own.root_trees[0].flows[0].label, own.root_trees[0].port, own.root_trees[0].tree

    def frame(group: str = str(GROUP), **where: Any) -> bytes:
        words = Checked(1, 64).sent([5] * 63, [0], tree, 0)
        made = packet(words, job=7, label=label, epoch=1, sequence=0, **{"port": port, **where})
        made[IP].dst = group
        return bytes(made)

    others = [
        frame(group="239.73.78.66"),
        frame(port=port ^ 1),  # This is another tree's port.
        frame(port=0x4FFF),
        frame(source=link["address"], address=own.address),  # This is the worker's own packet, come back.
    ]
    for other in others * 5:
        to_server.send(other)
    to_server.send(frame(address="10.9.3.1"))
    wait_until(lambda: server.stats().packets_received > 0, "the one that is right")
    stats = server.stats()
    assert (stats.packets_received, stats.malformed, stats.trees[0].added) == (1, 0, 1)


def test_packets_from_addresses_that_are_not_in_the_job_are_counted_alone(make_rig: MakeRig) -> None:
    """The sender knows everything, even the epoch's key: only its address is no worker's or parameter server's. Nothing
    else keeps its contribution out of the sum.
    """
    rig = make_rig((TreeShape(),), rate_mbps=20)
    own = rig.job.servers[0]
    tree, made = own.root_trees[0], Checked(WORKERS, 64)
    to_server, to_worker = rig.raw_port("s0"), rig.raw_port("w0")
    sent = packet(made.sent([5] * 63, [0], tree.tree, 0), job=7, label=tree.flows[0].label, epoch=1, sequence=0,
                  port=tree.port, address="10.9.3.77")  # fmt: skip
    answer = packet([0] * 64, job=7, label=tree.return_label, epoch=1, sequence=0, flags=int(Flag.RESULT),
                    port=tree.port, address="10.9.3.77")  # fmt: skip
    for _ in range(5):
        to_server.send(bytes(sent))
        to_worker.send(bytes(answer))
    wait_until(lambda: rig.servers[0].stats().other_source == 5, "the parameter server has counted them")
    wait_until(lambda: rig.engines[0].stats().other_source == 5, "the worker has counted them")
    trees = (rig.servers[0].stats().trees[0], rig.engines[0].stats().trees[0])
    assert (trees[0].added, trees[0].check_failures, trees[1].refused, trees[1].check_failures) == (0, 0, 0, 0)
    reduce_and_check(rig, 2, 1000)


@pytest.mark.parametrize("sizes", [(1000, 1001), (10, 100_000)])
def test_different_sizes_are_an_error_on_every_worker(make_rig: MakeRig, sizes: tuple[int, int]) -> None:
    rig = make_rig()
    odd = [np.ones(sizes[0] if worker else sizes[1], np.float32) for worker in range(WORKERS)]
    for work in rig.submit(odd):
        with pytest.raises(MismatchError, match=f"smallest has {min(sizes)} elements, the largest {max(sizes)}"):
            work.wait(DEADLINE)
        assert isinstance(work.exception(), MismatchError)
    with pytest.raises(MismatchError):
        rig.engines[0].allreduce_async(odd[0])
    rig.renew(epoch=2)
    reduce_and_check(rig, 1, 5000)


def test_different_operations_are_an_error_on_every_worker(make_rig: MakeRig) -> None:
    rig = make_rig()
    works = [
        engine.allreduce_async(np.ones(100, np.float32), "sum" if worker else "mean")
        for worker, engine in enumerate(rig.engines)
    ]
    for work in works:
        with pytest.raises(MismatchError, match="dtype, bits or operation"):
            work.wait(DEADLINE)


def test_an_agent_that_numbers_chunks_differently_is_an_error_on_every_worker(
    make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make_rig()
    works = [rig.engines[0].allreduce_async(np.ones(100, np.float32))]
    monkeypatch.setattr("worker_agent.engine.NUMBERING", 1)
    works += [engine.allreduce_async(np.ones(100, np.float32)) for engine in rig.engines[1:]]
    for work in works:
        with pytest.raises(MismatchError, match="different versions"):
            work.wait(DEADLINE)


def test_a_silent_server_is_named_by_the_deadline(make_rig: MakeRig) -> None:
    rig = make_rig(timeout=0.5, without=["s1"])
    for work in rig.submit([np.ones(1000, np.float32) for _ in range(WORKERS)]):
        with pytest.raises(ProgressTimeoutError, match=r"tree [12] \(root s1\): chunk 0"):
            work.wait(DEADLINE)


def test_an_aborted_engine_says_why_until_it_is_configured_again(make_rig: MakeRig) -> None:
    rig = make_rig(without=["s0", "s1"])
    works = rig.submit([np.ones(1000, np.float32) for _ in range(WORKERS)])
    for engine in rig.engines:
        engine.abort("worker w2 is gone")
    for work in works:
        with pytest.raises(AbortedError, match="worker w2 is gone"):
            work.wait(DEADLINE)
    with pytest.raises(AbortedError, match="worker w2 is gone"):
        rig.engines[0].allreduce_async(np.ones(1, np.float32))


def test_a_new_epoch_ends_pending_operations_and_refuses_old_packets(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.faults(delay_seconds=0.02)
    reduce_and_check(rig, 1, 5000)
    for epoch in (2, 5, 6):
        works = rig.submit([np.ones(200_000, np.float32) for _ in range(WORKERS)])
        wait_until(lambda: rig.servers[0].stats().trees[0].completed > 20, "it is under way")
        rig.renew(epoch)  # Packets of the old epoch are still in the network.
        for work in works:
            with pytest.raises(AbortedError, match="configured anew"):
                work.wait(DEADLINE)
        reduce_and_check(rig, epoch, 20_000)
    assert sum(server.stats().other_epoch for server in rig.servers) > 0


def test_a_tree_may_change_its_width_with_a_new_epoch(make_rig: MakeRig) -> None:
    """A new configuration may have packets of a different size."""
    rig = make_rig()
    reduce_and_check(rig, 1, 1000)
    with pytest.raises(AgentError, match="2048 values"):
        rig.engines[0].reconfigure(replace(rig.engines[0].config, epoch=2, values_per_packet=4096))
    with pytest.raises(AbortedError):
        rig.engines[0].allreduce_async(np.ones(1, np.float32))
    rig.renew(epoch=3)
    reduce_and_check(rig, 1, 1000)


def test_closing_ends_pending_operations(make_rig: MakeRig) -> None:
    rig = make_rig(without=["s0", "s1"])
    works = rig.submit([np.ones(1000, np.float32) for _ in range(WORKERS)])
    for engine in rig.engines:
        engine.close()
        engine.close()
    for work in works:
        with pytest.raises(AbortedError, match="closed"):
            work.wait(DEADLINE)
    with pytest.raises(AbortedError, match="closed"):
        rig.engines[0].allreduce_async(np.ones(1, np.float32))
    with pytest.raises(AbortedError, match="closed"):
        rig.engines[0].stats()


def test_an_engine_may_be_closed_by_a_callback(make_rig: MakeRig) -> None:
    rig = make_rig()
    works = rig.submit([np.ones(1000, np.float32) for _ in range(WORKERS)])
    closed: list[int] = []
    for worker, work in enumerate(works):

        def close(_: object, worker: int = worker) -> None:
            # The others still need this worker's answers, although it has had all of its own.
            rig.engines[worker].close()
            closed.append(worker)

        work.add_done_callback(close)
    finish(works)
    wait_until(lambda: len(closed) == WORKERS, "all engines are closed")


@pytest.mark.parametrize(
    ("array", "error", "says"),
    [
        (np.ones(10, np.complex64), TypeError, "float32, float16 and bfloat16"),
        (np.ones((4, 4), np.float32).T[1:], ValueError, "contiguous"),
        (np.ones(4, ">f4"), TypeError, "byte order"),
        ([1.0, 2.0], TypeError, "numpy array or a torch"),
        (np.broadcast_to(np.float32(1), (1,)), ValueError, "writable"),
    ],
)
def test_arrays_that_cannot_be_reduced_are_refused(array: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        host_array(array)


def test_bad_configurations_are_refused(network: StarNetwork) -> None:
    job = star(2)
    worker, server = job.workers[0], job.servers[0]
    with inside(network.hosts["w0"]):
        with pytest.raises(AgentError, match="no interface nowhere0"):
            Engine(worker, "nowhere0")
        with pytest.raises(AgentError, match="power of two"):
            Engine(replace(worker, worker_trees=(replace(worker.worker_trees[0], slots=48),)), "data0")
        with pytest.raises(AgentError, match="power of two"):
            Server(replace(server, root_trees=(replace(server.root_trees[0], slots=48),)), "data0")
        with pytest.raises(ValueError, match="not as a worker"):
            Engine(server, "data0")
        with pytest.raises(ValueError, match="not as a parameter server"):
            Server(worker, "data0")
        with pytest.raises(ValueError, match="answer labels"):
            Server(replace(server, root_trees=(replace(server.root_trees[0], answer_labels=(1,)),)), "data0")
        with pytest.raises(ValueError, match="no trees"):
            Engine(replace(worker, worker_trees=()), "data0")
        with pytest.raises(AgentError, match=r"MTU of data0 is 1500.*ip link set data0 mtu 2100"):
            Engine(replace(worker, values_per_packet=512), "data0")


def test_a_link_that_goes_down_and_comes_back_costs_time_only(make_rig: MakeRig) -> None:
    rig = make_rig([TreeShape(0, 1.0, True)], rate_mbps=50)
    before = tensors(1, WORKERS, 100_000)
    after = [tensor.copy() for tensor in before]
    works = rig.submit(after)
    wait_until(lambda: rig.servers[0].stats().trees[0].completed > 100, "it is under way")
    down = rig.network.hosts["w1"]
    run("ip", "-n", down, "link", "set", "dev", "data0", "down")
    try:
        wait_until(lambda: rig.engines[1].stats().send_errors > 0, "the worker has noticed")
    finally:
        run("ip", "-n", down, "link", "set", "dev", "data0", "up")
    finish(works)
    check(before, after, starts(rig, 100_000), VALUES)


def test_the_compiler_is_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INART_CACHE", str(tmp_path / "cache"))
    source = tmp_path / "answer.c"
    source.write_text("int answer(void) { return 42; }\n")
    first = build(source)
    written = first.stat().st_mtime_ns
    assert build(source) == first and first.stat().st_mtime_ns == written
    source.write_text("int answer(void) { return 43; }\n")
    assert build(source) != first


def test_a_source_that_does_not_compile_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INART_CACHE", str(tmp_path / "cache"))
    source = tmp_path / "broken.c"
    source.write_text("int answer(void) { return nothing; }\n")
    with pytest.raises(BuildError, match="nothing"):
        build(source)
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(BuildError, match="apt-get install"):
        build(source)


def test_structures_that_differ_from_those_of_c_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Pair(ctypes.Structure):
        _fields_ = (("a", ctypes.c_uint32), ("b", ctypes.c_uint64))

    class Single(ctypes.Structure):
        _fields_ = (("a", ctypes.c_uint32),)

    monkeypatch.setenv("INART_CACHE", str(tmp_path / "cache"))
    source = tmp_path / "pair.c"
    source.write_text("#include <stddef.h>\nconst size_t sizes[] = {16, 4, 0};\n")
    library = load(source)
    check_sizes(library, "sizes", [Pair, Single])
    with pytest.raises(BuildError, match="Single has 4 bytes, sizes says 16"):
        check_sizes(library, "sizes", [Single, Pair])
    with pytest.raises(BuildError, match="Single has 4 bytes, sizes says 0"):
        check_sizes(library, "sizes", [Pair, Single, Single])
    with pytest.raises(BuildError, match="more structures"):
        check_sizes(library, "sizes", [Pair])
