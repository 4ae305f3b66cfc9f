"""Digests from packet to client: configuration, lists, acknowledgements, and clients that are absent."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from google.rpc import code_pb2

from softswitch.p4runtime.stubs import p4runtime_pb2 as p4rt
from softswitch.tests.p4runtime.client import Client
from softswitch.tests.p4runtime.conftest import Served, data_plane
from softswitch.tests.p4runtime.programs import ids, program
from softswitch.tests.support.p4runtime import DELETE, INSERT, MODIFY, Stream, update
from softswitch.tests.support.waiting import wait_until as until

JSON, P4INFO = program("digests")
LEARN, NUMBER = ids(P4INFO)["learn_t"], ids(P4INFO)["digest_0"]
HOUR = 3600 * 10**9
ROLLBACK = p4rt.WriteRequest.ROLLBACK_ON_ERROR


@dataclass
class Learning:
    served: Served
    client: Client
    stream: Stream

    def configure(self, kind: int, digest_id: int = LEARN, *, timeout: int = 0, size: int = 1, ack: int = 0) -> int:
        config = p4rt.DigestEntry.Config(max_timeout_ns=timeout, max_list_size=size, ack_timeout_ns=ack)
        entry = p4rt.DigestEntry(digest_id=digest_id, config=None if kind == DELETE else config)
        (error,) = self.client.outcomes(update(kind, digest_entry=entry))
        return error.canonical_code

    def frame(self, source: int, kind: int = 0x8000) -> None:
        frame = (0xFF).to_bytes(6, "big") + source.to_bytes(6, "big") + kind.to_bytes(2, "big")
        ((port, sent),) = self.served.devices[1].process(3, frame)
        assert (port, sent) == (1, bytes(12) + kind.to_bytes(2, "big"))

    def next(self) -> p4rt.DigestList:
        message = self.stream.next()
        assert message.WhichOneof("update") == "digest", message
        return message.digest

    def sources(self) -> list[int]:
        return [int.from_bytes(one.struct.members[0].bitstring, "big") for one in self.next().data]

    def ack(self, list_id: int, digest_id: int = LEARN) -> None:
        ack = p4rt.DigestListAck(digest_id=digest_id, list_id=list_id)
        self.stream.send(p4rt.StreamMessageRequest(digest_ack=ack))
        self.stream.arbitrate(1)  # requests are answered in order, so the acknowledgement is handled before this
        assert self.stream.status()[0] == 0


@pytest.fixture
def learning() -> Iterator[Learning]:
    with data_plane(1) as served:
        client = served.client()
        stream = client.become_primary()
        client.set_pipeline(JSON, p4info=P4INFO)
        yield Learning(served, client, stream)


def test_every_message_at_once_with_the_values_of_the_call(learning: Learning) -> None:
    learning.configure(INSERT)
    learning.configure(INSERT, NUMBER)
    learning.frame(0x20001, 0x8FFE)
    first = learning.next()
    assert (first.digest_id, first.list_id) == (LEARN, 1)
    source, port, balance, odd = first.data[0].struct.members
    assert (source.bitstring, port.bitstring, balance.bitstring, odd.bool) == (b"\x02\x00\x01", b"\x03", b"\xfe", True)
    learning.frame(0x20001, 0x8FFE)  # there is no cache without ack_timeout_ns
    second = learning.next()
    assert second.list_id == 2
    assert second.timestamp > first.timestamp > 1_600_000_000 * 10**9
    learning.frame(7, 0xC000)  # two digests of one packet
    both = {one.digest_id: one for one in (learning.next(), learning.next())}
    assert both[NUMBER].data[0].bitstring == b"\xff"
    assert len(both[LEARN].data) == 1


def test_lists_are_full_or_old(learning: Learning) -> None:
    learning.configure(INSERT, timeout=HOUR, size=3)
    for source in (1, 2, 1, 2, 3, 4):  # equal messages in one list count once
        learning.frame(source)
    assert learning.sources() == [1, 2, 3]
    assert learning.stream.quiet()
    learning.configure(MODIFY, timeout=1_000_000, size=3)
    assert learning.sources() == [4]
    learning.frame(1)
    assert learning.sources() == [1]
    learning.configure(MODIFY, timeout=1_000_000, size=0)  # any size
    learning.frame(1)
    assert learning.sources() == [1]


def test_unacknowledged_digests_are_not_repeated(learning: Learning) -> None:
    learning.configure(INSERT, ack=HOUR)
    learning.frame(1)
    first = learning.next()
    learning.frame(1)
    learning.frame(2)
    assert learning.sources() == [2]
    learning.ack(first.list_id)
    learning.frame(2)
    learning.frame(1)
    assert learning.sources() == [1]
    learning.ack(first.list_id)  # again: nothing
    learning.ack(99)
    learning.frame(1)
    learning.frame(3)
    assert learning.sources() == [3]
    stats = learning.served.server.targets[1].digests
    assert (stats.lists, stats.acknowledged) == (4, 1)


def test_acknowledgement_timeout(learning: Learning) -> None:
    learning.configure(INSERT, ack=20_000_000)
    learning.frame(1)
    assert learning.sources() == [1]
    stats = learning.served.server.targets[1].digests
    until(lambda: stats.timed_out == 1)
    learning.frame(1)
    assert learning.sources() == [1]
    learning.configure(MODIFY, ack=0)  # from now on nothing is remembered
    learning.frame(1)
    assert learning.sources() == [1]


def test_configuration(learning: Learning) -> None:
    assert learning.client.read(p4rt.Entity(digest_entry=p4rt.DigestEntry())) == []
    learning.frame(1)  # no client has enabled the digest
    assert learning.configure(MODIFY) == code_pb2.NOT_FOUND
    assert learning.configure(DELETE) == code_pb2.NOT_FOUND
    assert learning.configure(INSERT, timeout=5, size=6, ack=HOUR) == code_pb2.OK
    assert learning.configure(INSERT) == code_pb2.ALREADY_EXISTS
    assert learning.configure(MODIFY, timeout=-1) == code_pb2.INVALID_ARGUMENT
    assert learning.configure(INSERT, 17) == code_pb2.INVALID_ARGUMENT
    (found,) = learning.client.read(p4rt.Entity(digest_entry=p4rt.DigestEntry(digest_id=LEARN)))
    assert found.digest_entry.config == p4rt.DigestEntry.Config(max_timeout_ns=5, max_list_size=6, ack_timeout_ns=HOUR)
    learning.frame(1)
    assert learning.sources() == [1]
    failing = p4rt.DigestEntry(digest_id=NUMBER)
    batch = [update(DELETE, digest_entry=found.digest_entry), update(MODIFY, digest_entry=failing)]
    codes = [one.canonical_code for one in learning.client.outcomes(*batch, atomicity=ROLLBACK)]
    assert codes == [code_pb2.ABORTED, code_pb2.NOT_FOUND]
    assert learning.client.read(p4rt.Entity(digest_entry=p4rt.DigestEntry())) == [found]
    assert learning.configure(DELETE) == code_pb2.OK
    learning.frame(2)
    assert learning.configure(INSERT) == code_pb2.OK
    learning.frame(3)
    assert learning.sources() == [3]


def test_acknowledgements_that_make_no_sense(learning: Learning) -> None:
    ack = p4rt.StreamMessageRequest(digest_ack=p4rt.DigestListAck(digest_id=17, list_id=1))
    learning.stream.send(ack)
    error = learning.stream.next().error
    assert error.canonical_code == code_pb2.INVALID_ARGUMENT
    assert error.digest_list_ack.digest_list_ack == ack.digest_ack
    backup = learning.served.client().stream()
    backup.send(ack)  # before arbitration
    assert backup.next().error.canonical_code == code_pb2.PERMISSION_DENIED
    backup.arbitrate(0)
    backup.status()
    backup.send(p4rt.StreamMessageRequest(digest_ack=p4rt.DigestListAck(digest_id=LEARN, list_id=1)))
    assert backup.next().error.canonical_code == code_pb2.PERMISSION_DENIED


def test_client_that_vanishes_loses_nothing_for_the_next(learning: Learning) -> None:
    learning.configure(INSERT, ack=HOUR)
    learning.frame(1)
    assert learning.sources() == [1]  # and it is never acknowledged
    target = learning.served.server.targets[1]
    learning.stream.vanish()
    until(lambda: not target.arbiter.primaries())
    learning.frame(2)
    until(lambda: target.digests.undelivered == 1)
    learning.stream = learning.served.client(election_id=2).become_primary()
    learning.frame(1)
    learning.frame(2)
    assert learning.sources() == [1]
    assert learning.sources() == [2]


def test_slow_client_does_not_hold_up_packets(learning: Learning) -> None:
    learning.configure(INSERT, ack=HOUR)
    learning.stream.hold()
    count = 70_000  # more than may wait for a client
    for source in range(count):
        learning.frame(source)
    device, stats = learning.served.devices[1], learning.served.server.targets[1].digests

    def lost() -> int:  # in the data plane, or in the queue to the client, depending on the machine's speed
        drops = device.drop_stats()
        return drops["too_many_digests"] + drops["host_queue_full"] + stats.undelivered

    until(lambda: lost() + stats.messages == count)
    assert lost() > 0
    learning.stream.release()
    assert learning.sources() == [0]


def test_a_new_pipeline_removes_the_digest_configuration(learning: Learning) -> None:
    learning.configure(INSERT, timeout=HOUR, size=5)
    learning.frame(1)
    learning.client.set_pipeline(JSON, p4info=P4INFO)
    assert learning.client.read(p4rt.Entity(digest_entry=p4rt.DigestEntry())) == []
    learning.frame(2)
    assert learning.configure(INSERT) == code_pb2.OK
    learning.frame(3)
    assert learning.sources() == [3]
