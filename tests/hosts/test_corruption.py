"""Bits flip in the network, and other users of a host forge packets: no sum is wrong, and every operation completes."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence

import pytest

from evaluation.chaos import forger
from p4src.protocol import VERSION, Flag, HostFlag
from tests.hosts.conftest import WORKERS
from tests.hosts.rig import Rig, check, tensors
from tests.hosts.test_allreduce import VALUES, starts
from tests.hosts.test_collectives import gather_and_check
from tests.support.waiting import wait_until

MakeRig = Callable[..., Rig]
VALUES_AT, HEADER_AT = 66, 42
PATIENCE = 120.0
"""Seconds: a flipped sequence number takes a slot of the switch for the rest of the epoch, and all chunks pass it
singly.
"""


def failures(rig: Rig) -> int:
    """Return the number of sums and packets that were refused because they were not what the workers had sent."""
    counted = [*(engine.stats().trees for engine in rig.engines), *(server.stats().trees for server in rig.servers)]
    return sum(tree.check_failures for trees in counted for tree in trees)


def reduce_and_check(rig: Rig, seed: int, elements: int) -> None:
    before = tensors(seed, WORKERS, elements)
    after = [tensor.copy() for tensor in before]
    for work in rig.submit(after):
        work.wait(PATIENCE)
    check(before, after, starts(rig, elements), VALUES)


@pytest.mark.parametrize(
    ("first", "end"),
    [
        pytest.param(VALUES_AT, 0, id="values"),
        pytest.param(HEADER_AT, VALUES_AT, id="header"),
        pytest.param(HEADER_AT, 0, id="all of the packet"),
    ],
)
def test_flipped_bits_make_no_sum_wrong(make_rig: MakeRig, first: int, end: int) -> None:
    rig = make_rig(timeout=PATIENCE)
    rig.faults(corrupt=0.005, corrupt_from=first, corrupt_until=end)
    for seed in range(3):
        reduce_and_check(rig, seed, 40_000)
    gather_and_check(rig, 5, 1_000)
    assert failures(rig) > 0, "flips that only the check word shows"
    rig.faults()
    reduce_and_check(rig, 9, 40_000)


def test_the_label_of_a_link_that_corrupts_is_named(make_rig: MakeRig) -> None:
    """The switch's port to a server flips bits, so the server suspects the partial sums and other packets of that
    port.
    """
    rig = make_rig()
    rig.faults(corrupt=0.05, corrupt_from=VALUES_AT)
    for seed in range(3):
        reduce_and_check(rig, seed, 40_000)
    known = {flow.label for server in rig.servers for tree in server.config.root_trees for flow in tree.flows}
    named = {label for server in rig.servers for tree in server.stats().trees for label, _, _ in tree.suspects}
    assert named and named <= known


def forged(rig: Rig, node: str, packets: Sequence[dict[str, int]]) -> subprocess.Popen[str]:
    """Run a process on a host that gives up all privileges and sends these packets, as `forger` describes."""
    config = next(one for one in (*rig.job.workers, *rig.job.servers) if one.node == node)
    command = ["ip", "netns", "exec", rig.network.hosts[node], sys.executable, "-I", "-S", forger.__file__]
    process = subprocess.Popen(
        [*command, str(VERSION), "64", "1"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    process.stdin.write(json.dumps({"address": config.address, "packets": list(packets)}) + "\n")
    process.stdin.close()
    return process


def test_another_user_without_the_key_cannot_falsify_a_sum(make_rig: MakeRig) -> None:
    """Processes of another user on a worker's host and on a server's know job, port, epoch and labels."""
    rig = make_rig(rate_mbps=20)
    worker, server = rig.job.workers[0], rig.job.servers[0]
    common = {"job": worker.job_id, "epoch": worker.epoch, "bitmap": 0, "count": 400}
    contributions = [
        {**common, "port": tree.port, "label": tree.up_label, "flags": flags, "sequence": 0}
        for tree in worker.worker_trees
        for flags in (0, int(Flag.RESEND), int(Flag.MAXIMUM))
    ]
    results = [
        {**common, "port": tree.port, "label": tree.return_label, "flags": int(Flag.RESULT), "sequence": 0, "bitmap": 4}
        for tree in server.root_trees
    ]
    first = [{**one, "count": 60} for one in contributions if not one["flags"]]
    # The forged packets are in the switch and at the servers before the worker's own.
    before = forged(rig, "w0", first)
    assert before.wait(60) == 0
    reduce_and_check(rig, 100, 30_000)
    assert failures(rig) > 0, "packets that nothing but the key tells apart"
    forgers = [forged(rig, "w0", contributions), forged(rig, "s0", results)]
    seed = 0
    while any(process.poll() is None for process in forgers):
        reduce_and_check(rig, seed, 30_000)
        seed += 1
    said = [json.loads(process.stdout.read()) for process in forgers if process.stdout is not None]
    assert [one["uid"] for one in said] == [forger.NOBODY] * 2 and all(one["sent"] > 0 for one in said)
    reduce_and_check(rig, seed, 30_000)


def test_another_user_cannot_ask_in_the_roots_place(make_rig: MakeRig) -> None:
    """Forged questions, of which the workers believe all but the check word, have no effect. Workers send nothing again
    for them and do not take chunks for complete that are not. The parameter servers begin later, so that nobody but the
    forger asks.
    """
    rig = make_rig(without=("s0", "s1"))
    server = rig.job.servers[0]
    before = tensors(3, WORKERS, 30_000)
    after = [tensor.copy() for tensor in before]
    works = rig.submit(after)
    asked = {tree.tree for tree in server.root_trees}

    def counted(name: str) -> list[list[int]]:
        """Return the count of each worker, by the server's trees."""
        return [[getattr(tree, name) for tree in engine.stats().trees if tree.tree in asked] for engine in rig.engines]

    wait_until(lambda: all(all(sent) for sent in counted("chunks_sent")), "there is something to ask for")
    flags = int(Flag.RESULT) | int(HostFlag.ASK)
    questions = [
        {
            "job": server.job_id, "epoch": server.epoch ^ attempt << 24, "port": tree.port, "label": tree.return_label,
            "flags": flags | more, "sequence": 0, "bitmap": complete << 32 | 32, "count": 20,
        }
        for tree in server.root_trees
        for attempt, more, complete in ((0, 0, 0), (1, 0, 0), (0, int(Flag.RESEND), 0), (0, 0, 1 << 20))
    ]  # fmt: skip
    process = forged(rig, "s0", questions)
    assert process.wait(60) == 0 and process.stdout is not None
    each = json.loads(process.stdout.read())["sent"] // len(asked)
    assert each == 4 * 20
    wait_until(
        lambda: all(refused == [each] * len(asked) for refused in counted("check_failures")), "each question is refused"
    )
    assert not any(map(sum, counted("resent_recovery"))), "workers have sent again what only the root may ask for"
    assert not any(map(sum, counted("resent_gap"))), "workers ask for results that nobody has said to be there"
    rig.start_servers()
    for work in works:
        work.wait(PATIENCE)
    check(before, after, starts(rig, 30_000), VALUES)


BIND = """
import os, socket, sys
os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)
found = []
for address in (sys.argv[1], ""):
    for options in ([], [socket.SO_REUSEADDR], [socket.SO_REUSEPORT], [socket.SO_REUSEADDR, socket.SO_REUSEPORT]):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as reader:
            for option in options:
                reader.setsockopt(socket.SOL_SOCKET, option, 1)
            try:
                reader.bind((address, int(sys.argv[2])))
                found.append(0)
            except OSError as error:
                found.append(error.errno)
print(*found)
"""


@pytest.mark.parametrize("node", ["w0", "s0"])
def test_another_user_cannot_bind_a_jobs_port(make_rig: MakeRig, node: str) -> None:
    """Results are multicast: whoever has the port hears them."""
    rig = make_rig()
    port = rig.job.workers[0].worker_trees[0].port
    command = ["ip", "netns", "exec", rig.network.hosts[node], sys.executable, "-I", "-S", "-c", BIND, forger.GROUP]
    done = subprocess.run([*command, str(port)], capture_output=True, text=True, check=True, timeout=60)
    assert [int(word) for word in done.stdout.split()] == [errno.EADDRINUSE] * 8
    assert os.geteuid() == 0
    reduce_and_check(rig, 1, 1000)
