"""Blocks that leave an agent once and that switches copy (L3): packets of docs/protocol.md, labelled for the task.

A packet has one of the program's sizes. Its label says to switches where it goes, and to receivers of which tree it is;
the epoch is the task's number, the sequence the packet's in the tree, the bitmap the overlay's epoch. Values are in the
hosts' byte order. Packets may be lost: overlay/net/reliable_multicast.py.

Sealed, where agents have certificates: a packet's values are encrypted, and they and its header authenticated, by
AES-GCM with a key that the coordinator drew and gave to its members over TLS. Switches change nothing of what they
forward and replicate. Who has the key could speak for another member.
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
"""Packets of so much time at a tree's rate leave together: timers are no finer."""

BUFFER_BYTES = 4 << 20
MOST_READ = 64
"""Packets between two looks at other sockets."""

IP_MTU_DISCOVER, IP_PMTUDISC_DO = 10, 2  # <linux/in.h>: packets are never fragments


TAG_BYTES = 16
_NONCE = struct.Struct(">III")


class Seal:
    """A key. The same nonce never comes twice: labels are of one sender in a task, tasks have numbers of their own in
    an epoch, and each coordinator draws another key."""

    def __init__(self, key: bytes) -> None:
        """key: 16 bytes."""
        self._cipher = AESGCM(key)

    @staticmethod
    def draw() -> bytes:
        """A new key."""
        return AESGCM.generate_key(128)

    def close(self, header: bytes, values: bytes) -> bytes:
        """What takes the place of the values, TAG_BYTES longer."""
        return self._cipher.encrypt(_nonce(header), values, header)

    def open(self, header: bytes, sealed: bytes) -> bytes | None:
        """The values; None: they, the header or the key are other ones."""
        try:
            return self._cipher.decrypt(_nonce(header), sealed, header)
        except InvalidTag:
            return None


def _nonce(header: bytes) -> bytes:
    _, _, _, label, task, sequence, _ = _HEADER.unpack(header)
    return _NONCE.pack(label, task, sequence)


@dataclass(frozen=True)
class Carrier:
    """What agents have to know to send and receive: the job's number on the wire, float32 values that the switches'
    program has in a packet, and whether packets are sealed."""

    job: int
    program_values: int
    sealed: bool = False

    @property
    def packet_values(self) -> int:
        """Values of a tree in a packet."""
        return self.program_values - (TAG_BYTES // 4 if self.sealed else 0)

    @property
    def port(self) -> int:
        return udp_port(self.job, 0)

    def packets(self, values: int) -> int:
        """Of a chunk of so many values."""
        return -(-values // self.packet_values)

    def bytes(self, values: int) -> int:
        """Of the frames of a chunk of so many values."""
        return self.packets(values) * frame_bytes(self.program_values)


@dataclass(frozen=True)
class Packet:
    """One that has come. values: the carrier's packet_values; those past the chunk's end count for nothing."""

    label: int
    epoch: int
    task: int
    sequence: int
    values: Values


class _Line:
    """What an agent has to send under one label."""

    def __init__(self, mbps: float) -> None:
        self.mbps = mbps
        self.waiting: deque[tuple[deque[tuple[bytes, memoryview]], Callable[[], None]]] = deque()
        self.next = 0.0
        self.timer: asyncio.TimerHandle | None = None


class Multicast:
    """An agent's socket for what switches copy. In the agent's loop.

    address: of the interface. received(packet): one has come; its values are its receiver's.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, address: str, carrier: Carrier, received: Callable[[Packet], None]
    ) -> None:
        """Raises OSError."""
        self.carrier, self._loop, self._received = carrier, loop, received
        self._seal: Seal | None = None
        self._bytes = HEADER_BYTES + 4 * carrier.program_values
        self._lines: dict[int, _Line] = {}
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
        """With this one from now on, also what waits. What comes with another is lost, and comes again over TCP."""
        self._seal = seal

    def send(self, chunk: Packet, mbps: float, sent: Callable[[], None]) -> None:
        """A chunk, as one packet that is too large (sequence: its first one's), with what else has its label at this
        rate; `sent`: it has left. Its values may not change until then. mbps: of values, without headers."""
        size, label = self.carrier.packet_values, chunk.label
        data = memoryview(chunk.values.data).cast("B")
        packets = []
        for k in range(self.carrier.packets(len(chunk.values))):
            fields = VERSION, Flag.RESULT, self.carrier.job, label, chunk.task, chunk.sequence + k, chunk.epoch
            packets.append((_HEADER.pack(*fields), data[4 * k * size : 4 * (k + 1) * size]))
        line = self._lines.get(label)
        if line is None:
            line = self._lines[label] = _Line(mbps)
        line.waiting.append((deque(packets), sent))
        if line.timer is None:
            self._pump(label, line)

    def pace(self, label: int, mbps: float) -> None:
        """What has this label goes at this rate from now on."""
        line = self._lines.get(label)
        if line is not None:
            line.mbps = mbps

    def forget(self, label: int) -> None:
        """Nothing more is to be sent under this label."""
        line = self._lines.pop(label, None)
        if line is not None and line.timer is not None:
            line.timer.cancel()

    def close(self) -> None:
        for label in list(self._lines):
            self.forget(label)
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()

    def _pump(self, label: int, line: _Line) -> None:
        line.timer = None
        seconds = 32e-6 * self.carrier.packet_values / line.mbps
        while line.waiting and self._lines.get(label) is line:
            packets, sent = line.waiting[0]
            while packets:
                now = self._loop.time()
                if line.next > now + AT_ONCE_SECONDS or not self._put(*packets[0]):
                    wait = max(line.next - now, AT_ONCE_SECONDS)
                    line.timer = self._loop.call_later(wait, self._pump, label, line)
                    return
                packets.popleft()
                # What was not used is lost: a timer that comes late must not make a burst.
                line.next = max(line.next, now - AT_ONCE_SECONDS) + seconds
            line.waiting.popleft()
            sent()

    def _put(self, head: bytes, data: memoryview) -> bool:
        """Whether the interface takes it."""
        parts: list[bytes | memoryview] = [head, data, self._padding[len(data) :]]
        if self.carrier.sealed:
            if self._seal is None:
                return True  # as below
            parts = [head, self._seal.close(head, b"".join(parts[1:]))]
        try:
            self._socket.sendmsg(parts, (), 0, (str(GROUP), self.carrier.port))
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            return True  # as if it had been lost on the way
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
    """Chunks of what switches copy that are not complete, of one tree of a task."""

    def __init__(self, carrier: Carrier, chunk_values: int) -> None:
        self._carrier, self.each = carrier, carrier.packets(chunk_values)
        self._chunks: dict[int, tuple[Values, set[int]]] = {}
        self.heard = 0.0  # when the last packet came

    def place(self, sequence: int) -> tuple[int, int]:
        """(chunk, packet in it) of a packet."""
        return divmod(sequence, self.each)

    def add(self, chunk: int, part: int, values: Values, place: Callable[[], Values]) -> Values | None:
        """The chunk's values where they are all there now. place(): memory for them."""
        if chunk not in self._chunks:
            whole = place()
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
        """It has come another way."""
        self._chunks.pop(chunk, None)
