"""Sends and receives packets that leave an agent once and that switches copy (L3), in the format of docs/protocol.md.

A packet has one of the sizes of the switches' program. Its label tells switches where to copy it, and receivers to
which tree it belongs. The field epoch has the task's number, the sequence the packet's number in the tree, and the
bitmap the coordinator's epoch. Values are in the hosts' byte order. Packets may be lost (reliable_multicast.py).

Where agents have certificates, packets are sealed with AES-GCM: values are encrypted, values and header authenticated,
with a key that the coordinator draws and sends to its members over TLS. Switches change nothing in packets that they
forward and copy. A member that has the key could send packets in another member's name.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from numpy.typing import NDArray

from p4src.protocol import GROUP, HEADER_BYTES, PROTOCOL, VERSION, Flag, frame_bytes, udp_port

Values = NDArray[np.float32]
_HEADER = struct.Struct(">BBHIIIQ")
assert _HEADER.size == HEADER_BYTES

AT_ONCE_SECONDS = 0.001
"""Packets that a tree's rate allows within this time, in seconds, leave together: timers are no finer."""

BUFFER_BYTES = 4 << 20
MOST_READ = 64
"""Most packets that are read before other sockets have their turn."""

IP_MTU_DISCOVER, IP_PMTUDISC_DO = 10, 2  # <linux/in.h>: packets are never fragments


TAG_BYTES = 16
_NONCE = struct.Struct(">III")


class Seal:
    """Seals packets with a key. No nonce is used twice: it contains the label, which belongs to one sender in a task,
    and the task's number, which is unique in an epoch; and each coordinator draws another key.
    """

    def __init__(self, key: bytes) -> None:
        """Take the key, of 16 bytes."""
        self._cipher = AESGCM(key)

    @staticmethod
    def draw() -> bytes:
        """Return a new key."""
        return AESGCM.generate_key(128)

    def seal(self, header: bytes, values: bytes) -> bytes:
        """Return the sealed values, TAG_BYTES longer than the values."""
        return self._cipher.encrypt(_nonce(header), values, header)

    def open(self, header: bytes, sealed: bytes) -> bytes | None:
        """Return the values; None where they or the header have been changed, or were sealed with another key."""
        try:
            return self._cipher.decrypt(_nonce(header), sealed, header)
        except InvalidTag:
            return None


def _nonce(header: bytes) -> bytes:
    _, _, _, label, task, sequence, _ = _HEADER.unpack(header)
    return _NONCE.pack(label, task, sequence)


@dataclass(frozen=True)
class Carrier:
    """The form of the packets of a coordinator's multicasts.

    Attributes:
        job: the job's number on the wire.
        program_values: how many float32 values the switches' program has in a packet.
        sealed: whether packets are sealed.
    """

    job: int
    program_values: int
    sealed: bool = False

    @property
    def packet_values(self) -> int:
        """Values of a tree in a packet; a seal takes the room of four."""
        return self.program_values - (TAG_BYTES // 4 if self.sealed else 0)

    @property
    def port(self) -> int:
        """The UDP port of the packets."""
        return udp_port(self.job, 0)

    def packets(self, values: int) -> int:
        """Return the number of packets of a chunk with this many values."""
        return -(-values // self.packet_values)

    def bytes(self, values: int) -> int:
        """Return the bytes of all frames of a chunk with this many values."""
        return self.packets(values) * frame_bytes(self.program_values)


@dataclass(frozen=True)
class Packet:
    """A packet that has arrived, or, as an argument of `Multicast.send`, a whole chunk with the sequence of its first
    packet.

    Attributes:
        values: `packet_values` of them; those past the chunk's end are padding.
    """

    label: int
    epoch: int
    task: int
    sequence: int
    values: Values


class _Queue:
    """The chunks that an agent has to send under one label.

    Attributes:
        mbps: rate of the packets, in Mbit/s of values.
        next_at: when the next packet may leave, in seconds of the loop.
    """

    def __init__(self, mbps: float) -> None:
        self.mbps = mbps
        self.waiting: deque[tuple[deque[tuple[bytes, memoryview]], Callable[[], None]]] = deque()
        self.next_at = 0.0
        self.timer: asyncio.TimerHandle | None = None


class Multicast:
    """An agent's socket for packets that switches copy, in the agent's loop.

    Args:
        loop: the agent's event loop.
        address: IPv4 address of the interface.
        carrier: the form of the packets.
        received: called with each packet that has arrived; the packet's values belong to the callee.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, address: str, carrier: Carrier, received: Callable[[Packet], None]
    ) -> None:
        """Open the socket. Raise OSError where that is not possible."""
        self.carrier, self._loop, self._received = carrier, loop, received
        self._seal: Seal | None = None
        self._bytes = HEADER_BYTES + 4 * carrier.program_values
        self._queues: dict[int, _Queue] = {}
        self._padding = memoryview(bytes(4 * carrier.packet_values))
        self.malformed = 0
        self.forged = 0  # packets that are not sealed with our key
        own = self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            own.setblocking(False)
            own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
            own.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO)
            own.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, PROTOCOL.ttl)
            own.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 0)
            own.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(address))
            member = socket.inet_aton(str(GROUP)) + socket.inet_aton(address)
            own.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, member)
            own.bind((str(GROUP), carrier.port))
        except OSError:
            own.close()
            raise
        loop.add_reader(own.fileno(), self._read)

    def sealed(self, seal: Seal) -> None:
        """Seal all packets that leave from now on in this way, also those that wait. A packet with another seal counts
        as lost, and is replaced over TCP.
        """
        self._seal = seal

    def send(self, chunk: Packet, mbps: float, sent: Callable[[], None]) -> None:
        """Send a chunk, given as one packet that is too large, whose sequence is that of its first packet.

        Args:
            chunk: the chunk.
            mbps: rate of all chunks with its label, in Mbit/s of values without headers.
            sent: called when the chunk has left; its values may not change before.
        """
        size, label = self.carrier.packet_values, chunk.label
        data = memoryview(chunk.values.data).cast("B")
        packets = []
        for k in range(self.carrier.packets(len(chunk.values))):
            fields = VERSION, Flag.RESULT, self.carrier.job, label, chunk.task, chunk.sequence + k, chunk.epoch
            packets.append((_HEADER.pack(*fields), data[4 * k * size : 4 * (k + 1) * size]))
        queue = self._queues.get(label)
        if queue is None:
            queue = self._queues[label] = _Queue(mbps)
        queue.waiting.append((deque(packets), sent))
        if queue.timer is None:
            self._pump(label, queue)

    def pace(self, label: int, mbps: float) -> None:
        """Send chunks with this label at this rate (Mbit/s of values) from now on."""
        queue = self._queues.get(label)
        if queue is not None:
            queue.mbps = mbps

    def forget(self, label: int) -> None:
        """Drop the chunks with this label that wait."""
        queue = self._queues.pop(label, None)
        if queue is not None and queue.timer is not None:
            queue.timer.cancel()

    def close(self) -> None:
        for label in list(self._queues):
            self.forget(label)
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()

    def _pump(self, label: int, queue: _Queue) -> None:
        queue.timer = None
        seconds = 32e-6 * self.carrier.packet_values / queue.mbps
        while queue.waiting and self._queues.get(label) is queue:
            packets, sent = queue.waiting[0]
            while packets:
                now = self._loop.time()
                if queue.next_at > now + AT_ONCE_SECONDS or not self._put(*packets[0]):
                    wait = max(queue.next_at - now, AT_ONCE_SECONDS)
                    queue.timer = self._loop.call_later(wait, self._pump, label, queue)
                    return
                packets.popleft()
                # Unused time is lost: a late timer must not cause a burst.
                queue.next_at = max(queue.next_at, now - AT_ONCE_SECONDS) + seconds
            queue.waiting.popleft()
            sent()

    def _put(self, head: bytes, data: memoryview) -> bool:
        """Send a packet. Return whether the interface took it."""
        parts: list[bytes | memoryview] = [head, data, self._padding[len(data) :]]
        if self.carrier.sealed:
            if self._seal is None:
                return True  # it counts as lost on the way
            parts = [head, self._seal.seal(head, b"".join(parts[1:]))]
        try:
            self._socket.sendmsg(parts, (), 0, (str(GROUP), self.carrier.port))
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            return True  # it counts as lost on the way
        return True

    def _read(self) -> None:
        for _ in range(MOST_READ):
            try:
                data = self._socket.recv(self._bytes + 1)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                continue
            if len(data) != self._bytes:
                self.malformed += 1
                continue
            version, _, job, label, task, sequence, epoch = _HEADER.unpack_from(data)
            if version != VERSION or job != self.carrier.job:
                self.malformed += 1
                continue
            if not self.carrier.sealed:
                values = np.frombuffer(data, np.float32, offset=HEADER_BYTES)
            else:
                opened = self._seal.open(data[:HEADER_BYTES], data[HEADER_BYTES:]) if self._seal else None
                if opened is None:
                    self.forged += 1
                    continue
                values = np.frombuffer(opened, np.float32)
            self._received(Packet(label, epoch, task, sequence, values))


class Assembly:
    """The incomplete chunks of one tree that switches copy.

    Attributes:
        heard: when the tree's last packet arrived, in seconds of the loop.
    """

    def __init__(self, carrier: Carrier, chunk_values: int) -> None:
        self._carrier, self.packets_per_chunk = carrier, carrier.packets(chunk_values)
        self._chunks: dict[int, tuple[Values, set[int]]] = {}
        self.heard = 0.0

    def place(self, sequence: int) -> tuple[int, int]:
        """Return (chunk, packet within it) of the packet with this sequence."""
        return divmod(sequence, self.packets_per_chunk)

    def add(self, chunk: int, part: int, values: Values, buffer: Callable[[], Values]) -> Values | None:
        """Add a packet to its chunk. Return the chunk's values when they are complete, else None.

        Args:
            chunk: number of the chunk.
            part: number of the packet in the chunk.
            values: the packet's values.
            buffer: returns memory for the chunk's values.
        """
        if chunk not in self._chunks:
            whole = buffer()
            self._chunks[chunk] = whole, set(range(self._carrier.packets(len(whole))))
        whole, missing = self._chunks[chunk]
        if part not in missing:
            return None
        missing.discard(part)
        begin = part * self._carrier.packet_values
        end = min(len(whole), begin + self._carrier.packet_values)
        whole[begin:end] = values[: end - begin]
        if missing:
            return None
        del self._chunks[chunk]
        return whole

    def forget(self, chunk: int) -> None:
        """Forget the packets of a chunk that has arrived over TCP."""
        self._chunks.pop(chunk, None)
