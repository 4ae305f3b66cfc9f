"""A running fabric: the data plane, the P4Runtime server, and the operations of the control socket on them."""

from __future__ import annotations

import dataclasses
import random
import threading
from pathlib import Path

from google.protobuf import text_format
from google.protobuf.message import DecodeError

from softswitch.app.commands import Commands
from softswitch.app.config import MAX_PORT, ConfigError, DeviceConfig, FabricConfig, PortConfig, Shape, check_shape
from softswitch.app.packet_socket import PacketSocket
from softswitch.dataplane import pcap
from softswitch.dataplane.crc import Crc
from softswitch.dataplane.device import Device
from softswitch.dataplane.fabric import Fabric
from softswitch.dataplane.program import Program
from softswitch.dataplane.trace import Trace
from softswitch.errors import SoftswitchError
from softswitch.p4runtime import P4RuntimeError, P4RuntimeServer, Tls
from softswitch.p4runtime.pipeline import config_of
from softswitch.p4runtime.status import MAX_STATUS_BYTES
from softswitch.p4runtime.stubs import p4info_pb2
from softswitch.p4runtime.unknown import API_VERSION, refuse_fields


class Switches:
    """All devices of a :class:`FabricConfig`. They are made completely, and are idle until :meth:`start`.

    It raises the errors of loading programs, opening interfaces and listening: :class:`SoftswitchError`,
    :class:`P4RuntimeError`, OSError.
    """

    def __init__(self, config: FabricConfig, tls: Tls | None = None, max_status_bytes: int = MAX_STATUS_BYTES) -> None:
        self.config = config
        self._fabric = Fabric(config.threads, config.seed)
        self._stopping = threading.Event()
        self._random = random.Random(config.seed)
        self._reboots = {device.device_id: threading.Lock() for device in config.devices}
        self._shapes: dict[tuple[int, int], Shape] = {}  # shape of every port that exists
        self._interfaces: dict[tuple[int, int], str] = {}  # interface of each port that is on one
        self._shapes_lock = threading.Lock()  # guards both dictionaries, and changes of ports
        for device in config.devices:
            self._fabric.add_device(device.device_id, device.cpu_port, device.priority_queues)
        self._commands = {number: Commands(device) for number, device in self._fabric.devices.items()}
        for a, b in config.links():
            self._fabric.connect(a, b)
        for device in config.devices:
            for port in device.ports:
                if port.interface is not None:
                    self._fabric.devices[device.device_id].add_port(port.port, port.interface, device.offload)
                    self._interfaces[device.device_id, port.port] = port.interface
                if device.pcap is not None:
                    self._record(device, port)
                self._shapes[device.device_id, port.port] = {}
                if port.shape:
                    self.shape(device.device_id, port.port, port.shape)
        self._server = P4RuntimeServer(self._fabric.devices.values(), Program.load, max_status_bytes=max_status_bytes)
        for device in config.devices:
            self._load(device)
        self.addresses = [self._server.listen(address, tls) for address in config.grpc]

    def start(self) -> None:
        self._fabric.start()
        self._server.start()

    def stop(self) -> None:
        """Stop serving and free everything; the object cannot be used afterwards."""
        self._stopping.set()
        self._server.stop()
        self._fabric.close()

    def shape(self, device: int | str, port: int, shape: Shape) -> Shape:
        """Change the shaping of the frames that a port sends, and return all settings of the port; settings not given
        stay.
        """
        device_id = self.config.find(device).device_id
        what = f"device {device} port {port}"
        checked = check_shape(shape, what)
        with self._shapes_lock:
            if (device_id, port) not in self._shapes:
                raise ConfigError(f"{what} does not exist")
            whole = self._shapes[device_id, port] | checked
            self._fabric.shape(device_id, port, **whole)  # type: ignore[arg-type]  # rate_mbps may be None
            self._shapes[device_id, port] = whole
        return whole

    def add_port(self, device: int | str, port: int, interface: str) -> None:
        """Give a device a port on a Linux interface, without shaping; it lasts until it is removed or the process
        ends.
        """
        found = self.config.find(device)
        place = found.device_id, port
        what = f"device {device} port {port}"
        if not 0 <= port <= MAX_PORT:
            raise ConfigError(f"{what}: the number must be in 0..{MAX_PORT}")
        if port == found.cpu_port:
            raise ConfigError(f"{what}: this is the CPU port")
        with self._shapes_lock:
            if place in self._shapes:
                raise ConfigError(f"{what} is there already: remove it first")
            for (owner, number), used in self._interfaces.items():
                if used == interface:
                    raise ConfigError(f"{what}: interface {interface} is used by device {owner} port {number}")
            self._fabric.devices[found.device_id].add_port(port, interface, found.offload)
            if found.pcap is not None:
                self._record(found, PortConfig(port, interface))
            self._fabric.shape(found.device_id, port)
            self._shapes[place], self._interfaces[place] = {}, interface

    def remove_port(self, device: int | str, port: int) -> None:
        """Detach a port from its interface, which others may then use.

        Entries for the port stay, and frames that they send to it are dropped. A link in memory cannot be removed: it
        has two ends, and its devices were made with it.
        """
        place = self.config.find(device).device_id, port
        with self._shapes_lock:
            if place not in self._shapes:
                raise ConfigError(f"device {device} port {port} does not exist")
            if place not in self._interfaces:
                raise ConfigError(f"device {device} port {port} is the end of a link in memory, which stays")
            self._fabric.devices[place[0]].remove_port(port)
            del self._shapes[place], self._interfaces[place]

    def packet_socket(self, device: int | str, address: str) -> PacketSocket:
        """Connect a device's ports that have neither interface nor link to a socket, until the caller stops that."""
        found = self._device(device)
        packets = PacketSocket(address, found.inject)
        found.capture = packets.send
        return packets

    def reboot(self, device: int | str, down_s: float = 0.0) -> None:
        """Switch a device off and, ``down_s`` seconds later, on again; it comes back as it was first started."""
        found = self.config.find(device)
        with self._reboots[found.device_id]:
            target = self._server.targets[found.device_id]
            target.shut()
            self._stopping.wait(down_s)
            self._load(found)
            target.open()

    def flip(self, device: int | str, register: str, count: int = 1, most_index: int | None = None) -> list[object]:
        """Flip a random bit, drawn with the fabric's seed, in each of `count` random elements, and return the flipped
        bits.

        Args:
            device: id or name of the device.
            register: prefix of the registers' names.
            count: number of elements.
            most_index: the highest index of an element; None: that of the last one.
        """
        found = self._device(device)
        program = found.program
        registers = [one for one in program.registers.values() if one.name.startswith(register)] if program else []
        if not registers:
            raise ConfigError(f"device {device} has no register whose name begins with {register!r}")
        flipped: list[object] = []
        for _ in range(count):
            one = self._random.choice(registers)
            index = self._random.randrange(one.size if most_index is None else min(one.size, most_index + 1))
            bit = self._random.randrange(one.width)
            found.register_flip(one.name, index, bit)
            flipped.append({"register": one.name, "index": index, "bit": bit})
        return flipped

    def set_crc(self, device: int | str, calculation: str, parameters: dict[str, int]) -> None:
        """Choose how a custom check of a device's program is computed; the parameters are those of :class:`Crc`."""
        names = [one.name for one in dataclasses.fields(Crc)]
        if "polynomial" not in parameters or not set(parameters) <= set(names):
            raise ConfigError(f"give the polynomial, and of {', '.join(names[1:])} what is not 0")
        if not all(isinstance(value, int) for value in parameters.values()):
            raise ConfigError("the parameters of a check are whole numbers")
        chosen = Crc(**parameters)  # type: ignore[arg-type]  # 0 and 1 are bools enough
        self._device(device).set_crc(calculation, chosen)

    def run(self, device: int | str, line: str) -> dict[str, object]:
        """Run a command of bmv2's simple_switch_CLI on a device, and return its answer: ``lines`` for people, and the
        same as JSON values in ``value``.
        """
        found = self.config.find(device).device_id
        with self._server.targets[found].lock:
            answer = self._commands[found].run(line)
        return {"lines": answer.lines, "value": answer.value}

    def trace(
        self, device: int | str, packets: int | None = None, in_port: int | None = None, out_port: int | None = None
    ) -> Trace:
        """Return a trace of the next packets of a device; the caller closes it."""
        found = self._device(device)
        return Trace(found, packets, in_port, out_port)

    def stats(self, device: int | str | None = None) -> dict[str, object]:
        """Return the counters of all devices, or of one, as JSON values."""
        chosen = self.config.devices if device is None else (self.config.find(device),)
        return {"devices": {str(one.device_id): self._device_stats(one) for one in chosen}}

    def _device(self, device: int | str) -> Device:
        return self._fabric.devices[self.config.find(device).device_id]

    def _device_stats(self, device: DeviceConfig) -> dict[str, object]:
        data_plane = self._fabric.devices[device.device_id]
        return {
            "name": device.name,
            "ports": {str(port): dataclasses.asdict(stats) for port, stats in data_plane.port_stats().items()},
            "drops": data_plane.drop_stats(),
            "shape": {str(port): shape for (owner, port), shape in self._shapes.items() if owner == device.device_id},
            "p4runtime": self._server.targets[device.device_id].summary(),
        }

    def _record(self, device: DeviceConfig, port: PortConfig) -> None:
        files = device.pcap_files(port)
        try:
            pcap.record(self._fabric.devices[device.device_id], port.port, *files)
        except OSError as error:
            raise ConfigError(f"cannot record into {error.filename}: {error.strerror}") from None

    def _load(self, device: DeviceConfig) -> None:
        if device.program is None:
            return
        bmv2_json = _read(device.program)
        try:
            if device.p4info is None:
                self._fabric.devices[device.device_id].load(Program.load(bmv2_json))
            else:
                self._server.targets[device.device_id].install(config_of(read_p4info(device.p4info), bmv2_json))
        except (SoftswitchError, P4RuntimeError) as error:
            raise ConfigError(f"{device.program}: {error}") from error


def read_p4info(path: Path) -> p4info_pb2.P4Info:
    """Read a P4Info file, in text format or binary. Raise ConfigError also for a field that is not known."""
    data = _read(path)
    try:
        return text_format.Parse(data.decode(), p4info_pb2.P4Info())
    except (UnicodeDecodeError, text_format.ParseError) as text_error:
        try:
            found = p4info_pb2.P4Info.FromString(data)
            refuse_fields(found)
            return found
        except P4RuntimeError as error:
            raise ConfigError(f"{path}: {error}") from None
        except DecodeError:
            raise ConfigError(f"{path} is not a P4Info file of P4Runtime {API_VERSION}: {text_error}") from None


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
