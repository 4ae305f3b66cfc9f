"""The switches that samples run on: softswitch in this process, or bmv2's simple_switch_grpc."""

from __future__ import annotations

import queue
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory

from softswitch import Fabric, Program
from softswitch.p4runtime import P4RuntimeServer
from softswitch.tests.support import switches

Frames = dict[int, list[bytes]]
"""Maps each port to the frames that left by it, in the order in which they left."""

DEADLINE = 30.0
DEVICE_ID = 1


class Switch(ABC):
    """A running switch without a program, which serves P4Runtime at ``address``."""

    address: str

    @abstractmethod
    def load(self, config: bytes) -> bool:
        """Load a program without P4Runtime. Returns False if the switch cannot do that."""

    @abstractmethod
    def send(self, port: int, frame: bytes) -> None:
        """Send the switch a frame on this port."""

    @abstractmethod
    def settle(self, expected: int = 0) -> None:
        """Return when the frames sent so far have been processed.

        ``expected``: the number of frames that should have left by then.
        """

    @abstractmethod
    def received(self) -> Frames:
        """Return everything that the switch has sent so far."""

    @abstractmethod
    def close(self) -> None:
        """Stop the switch."""


class Softswitch(Switch):
    """softswitch with its P4Runtime server in this process.

    Raises ``SoftswitchError`` for a program that it cannot load.
    """

    def __init__(self, config: bytes, ports: Sequence[int], threads: int = 1) -> None:
        del ports
        # This raises the exception itself; over P4Runtime it would be a status with the same text.
        Program.load(config)
        self._frames: Frames = {}
        self._directory = tempfile.TemporaryDirectory(prefix="conformance-")
        self.fabric = Fabric(threads, seed=1)
        self.device = self.fabric.add_device(DEVICE_ID)
        self._server = P4RuntimeServer([self.device])
        self.address = self._server.listen(f"unix:{self._directory.name}/grpc")
        self._server.start()

    def load(self, config: bytes) -> bool:
        self.device.load(Program.load(config))
        return True

    def send(self, port: int, frame: bytes) -> None:
        for out, data in self.device.process(port, frame):
            self._frames.setdefault(out, []).append(data)

    def settle(self, expected: int = 0) -> None:
        """Do nothing, because ``send`` returns only when the frame has been processed."""

    def received(self) -> Frames:
        return self._frames

    def close(self) -> None:
        self._server.stop(grace=0)
        self.fabric.close()
        self._directory.cleanup()


QUIET = 0.15  # Seconds without output after which bmv2 is taken to have processed everything.
SETTLE = 0.4  # Seconds that bmv2 may need until a program or entries that it has acknowledged take effect.
PATIENCE = 5.0  # Seconds that bmv2 may need for the frames that are expected.


def _packet_type() -> type[message.Message]:
    """Return the message type of bmv2's PacketStreamRequest and PacketStreamResponse, which have the same fields."""
    file = descriptor_pb2.FileDescriptorProto(name="conformance/dataplane.proto", package="p4.bm", syntax="proto3")
    declared = file.message_type.add(name="PacketStreamMessage")
    kinds = descriptor_pb2.FieldDescriptorProto
    types = {"id": kinds.TYPE_UINT64, "device_id": kinds.TYPE_UINT64, "port": kinds.TYPE_UINT32,
             "packet": kinds.TYPE_BYTES}  # fmt: skip
    for number, (name, kind) in enumerate(types.items(), 1):
        declared.field.add(name=name, number=number, type=kind, label=kinds.LABEL_OPTIONAL)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("p4.bm.PacketStreamMessage"))


class Bmv2(Switch):
    """bmv2's simple_switch_grpc.

    Frames go in and out over its gRPC data plane, because an interface would not carry frames as short as those of some
    samples.
    """

    def __init__(self, config: bytes, ports: Sequence[int]) -> None:
        del config, ports
        self._directory = tempfile.TemporaryDirectory(prefix="conformance-")
        path = Path(self._directory.name)
        packets = f"unix:{path}/packets"
        self._switch = switches.Switch("bmv2", path, device_id=DEVICE_ID, options=["--dp-grpc-server-addr", packets])
        self.address = self._switch.address
        self._type = _packet_type()
        self._frames: Frames = {}
        self._last = time.monotonic()
        self._closed = threading.Event()
        self._ready = threading.Event()
        self._requests: queue.SimpleQueue[message.Message | None] = queue.SimpleQueue()
        self._switch.start()
        self._channel = grpc.insecure_channel(packets)
        try:
            grpc.channel_ready_future(self._channel).result(DEADLINE)
        except BaseException:
            self.close()
            raise
        threading.Thread(target=self._exchange, daemon=True).start()

    def _exchange(self) -> None:
        call = self._channel.stream_stream(
            "/p4.bm.DataplaneInterface/PacketStream",
            request_serializer=lambda request: request.SerializeToString(),
            response_deserializer=self._type.FromString,
        )
        while True:  # The switch refuses the stream until it has a program.
            requests: queue.SimpleQueue[message.Message | None] = queue.SimpleQueue()
            stream = call(iter(requests.get, None))
            if self._closed.wait(SETTLE / 2):
                return
            if stream.is_active():
                break
            requests.put(None)  # None ends the thread that reads this queue.
        self._requests = requests
        self._ready.set()
        try:
            for response in stream:
                self._frames.setdefault(response.port, []).append(response.packet)
                self._last = time.monotonic()
        except grpc.RpcError:
            pass  # The switch has ended by itself or has been stopped.

    def load(self, config: bytes) -> bool:
        del config
        return False

    def send(self, port: int, frame: bytes) -> None:
        if not self._ready.wait(DEADLINE):
            raise RuntimeError("bmv2 accepts no packets")
        self._requests.put(self._type(device_id=DEVICE_ID, port=port, packet=frame))
        self._last = time.monotonic()

    def settle(self, expected: int = 0) -> None:
        time.sleep(SETTLE)
        end = time.monotonic() + PATIENCE
        while sum(map(len, self._frames.values())) < expected and time.monotonic() < end:
            time.sleep(QUIET / 5)
        while time.monotonic() - self._last < QUIET:
            time.sleep(QUIET / 5)

    def received(self) -> Frames:
        if self._switch.status() is not None:
            raise RuntimeError(f"bmv2 ended with status {self._switch.status()}")
        return self._frames

    def close(self) -> None:
        self._closed.set()
        self._requests.put(None)
        self._channel.close()
        self._switch.close()
        self._directory.cleanup()


TARGETS: dict[str, type[Softswitch] | type[Bmv2]] = {"softswitch": Softswitch, "bmv2": Bmv2}
