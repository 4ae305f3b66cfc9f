"""The switches that samples run on: softswitch in this process, or bmv2's simple_switch_grpc with packets in files."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from softswitch import Fabric, Program
from softswitch.p4runtime import P4RuntimeServer

Frames = dict[int, list[bytes]]
"""By port, in the order in which they left it."""

DEADLINE = 30.0
DEVICE_ID = 1


class Switch(ABC):
    """A running switch without a program, served over P4Runtime at ``address``."""

    address: str

    @abstractmethod
    def send(self, port: int, frame: bytes) -> None:
        """Give it a frame."""

    @abstractmethod
    def settle(self) -> None:
        """Return when the frames sent so far have been processed."""

    @abstractmethod
    def received(self) -> Frames:
        """Everything that the switch has sent; it takes no more frames after this."""

    @abstractmethod
    def close(self) -> None:
        """Stop it."""


class Softswitch(Switch):
    """softswitch, with its P4Runtime server, in this process. Raises ``SoftswitchError`` for what it cannot load."""

    def __init__(self, config: bytes, ports: Sequence[int]) -> None:
        del ports
        Program.load(config)  # for the exception: over P4Runtime it would be a status with the same text
        self._frames: Frames = {}
        self._directory = tempfile.TemporaryDirectory(prefix="conformance-")
        self._fabric = Fabric(seed=1)
        self._device = self._fabric.add_device(DEVICE_ID)
        self._server = P4RuntimeServer([self._device])
        self.address = self._server.listen(f"unix:{self._directory.name}/grpc")
        self._server.start()

    def send(self, port: int, frame: bytes) -> None:
        for out, data in self._device.process(port, frame):
            self._frames.setdefault(out, []).append(data)

    def settle(self) -> None:
        """``send`` returns when the frame is done."""

    def received(self) -> Frames:
        return self._frames

    def close(self) -> None:
        self._server.stop(grace=0)
        self._fabric.close()
        self._directory.cleanup()


MAGIC = struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1)
QUIET = 0.25  # seconds without output after which bmv2 is taken to be done
SETTLE = 0.4  # seconds that bmv2 takes to use a program or entries that it has acknowledged


class Bmv2(Switch):
    """simple_switch_grpc; each port reads frames from a FIFO and writes them to a file, both in pcap format, because
    an interface would not carry frames as short as some samples have."""

    PROGRAM = "simple_switch_grpc"

    def __init__(self, config: bytes, ports: Sequence[int]) -> None:
        del config
        self._directory = tempfile.TemporaryDirectory(prefix="conformance-")
        self._path = Path(self._directory.name)
        self._in: dict[int, BinaryIO] = {}
        self.address = f"unix:{self._path}/grpc"
        command = [self.PROGRAM, "--no-p4", "--device-id", str(DEVICE_ID), "--use-files", "0"]
        for port in ports:
            os.mkfifo(self._path / f"p{port}_in.pcap")
            command += ["-i", f"{port}@p{port}"]
        with (self._path / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [*command, "--", "--grpc-server-addr", self.address],
                cwd=self._path, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        try:
            for port in ports:  # in the order of the command line: bmv2 opens one after the other
                self._in[port] = self._open(self._path / f"p{port}_in.pcap")
                self._in[port].write(MAGIC)
                self._in[port].flush()
        except BaseException:
            self.close()
            raise

    def _open(self, fifo: Path) -> BinaryIO:
        end = time.monotonic() + DEADLINE
        while True:
            try:
                return os.fdopen(os.open(fifo, os.O_WRONLY | os.O_NONBLOCK), "wb")
            except OSError:  # nobody reads it yet
                if time.monotonic() > end or self._process.poll() is not None:
                    raise
                time.sleep(0.01)

    def send(self, port: int, frame: bytes) -> None:
        now = time.time()
        header = struct.pack("<IIII", int(now), int(now % 1 * 1e6), len(frame), len(frame))
        self._in[port].write(header + frame)
        self._in[port].flush()

    def settle(self) -> None:
        time.sleep(SETTLE)
        last, since = self._sizes(), time.monotonic()
        while time.monotonic() - since < QUIET:
            time.sleep(QUIET / 5)
            if (sizes := self._sizes()) != last:
                last, since = sizes, time.monotonic()

    def _sizes(self) -> list[int]:
        return [path.stat().st_size for path in sorted(self._path.glob("*_out.pcap"))]

    def received(self) -> Frames:
        self.settle()
        if self._process.poll() is not None:
            raise RuntimeError(f"{self.PROGRAM} ended with status {self._process.returncode}")
        self._stop()
        return {
            int(path.name[1:].split("_")[0]): frames
            for path in self._path.glob("*_out.pcap")
            if (frames := read_pcap(path.read_bytes()))
        }

    def _stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(10)

    def close(self) -> None:
        for file in self._in.values():
            try:
                file.close()
            except BrokenPipeError:
                pass
        self._stop()
        self._directory.cleanup()


def read_pcap(data: bytes) -> list[bytes]:
    """The frames of a pcap file of this machine's byte order."""
    frames: list[bytes] = []
    at = 24
    while at + 16 <= len(data):
        (size,) = struct.unpack_from("=I", data, at + 8)
        frames.append(data[at + 16 : at + 16 + size])
        at += 16 + size
    return frames


TARGETS: dict[str, type[Softswitch] | type[Bmv2]] = {"softswitch": Softswitch, "bmv2": Bmv2}


def missing(target: str) -> str | None:
    """Why a target cannot run here; None when it can."""
    if target == "bmv2" and shutil.which(Bmv2.PROGRAM) is None:
        return f"{Bmv2.PROGRAM} is not on PATH"
    if target == "softswitch" and shutil.which(os.environ.get("CC", "cc")) is None:
        return "there is no C compiler (cc)"
    return None
