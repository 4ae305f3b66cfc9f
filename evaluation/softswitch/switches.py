"""The two switches under measurement, each with port 1 and port 2 on given interfaces."""

from __future__ import annotations

import os
import queue
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Protocol

import grpc
from google.protobuf import text_format
from p4.config.v1 import p4info_pb2
from p4.v1 import p4runtime_pb2, p4runtime_pb2_grpc

from evaluation.softswitch.workloads import Workload
from softswitch import Fabric, Match, Program

BMV2 = "simple_switch_grpc"
DEADLINE = 30.0  # seconds for bmv2 to start and for each call to it


class Switch(Protocol):
    """A switch that runs a workload's program."""

    name: str

    def cpu_seconds(self) -> float:
        """CPU time that its threads have used so far."""

    def close(self) -> None:
        """Stop it."""


def threads_seconds(pid: int | str) -> float:
    """CPU time of a process' threads, in seconds, from the scheduler's own account."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9


class Softswitch:
    """softswitch in this process."""

    def __init__(self, workload: Workload, interfaces: tuple[str, str]) -> None:
        self.name = "softswitch"
        self.fabric = Fabric()
        try:
            self.device = self.fabric.add_device(1)
            self.device.load(Program.load(workload.program.read_bytes()))
            for row in workload.rows:
                self.device.insert(row.table, [_match(m) for m in row.match], row.action, row.params)
            for port, interface in enumerate(interfaces, 1):
                self.device.add_port(port, interface)
            self.fabric.start()
        except BaseException:
            self.fabric.close()
            raise

    def cpu_seconds(self) -> float:
        return threads_seconds("self")

    def close(self) -> None:
        self.fabric.close()


class Bmv2:
    """``simple_switch_grpc`` from PATH, filled over P4Runtime."""

    def __init__(self, workload: Workload, interfaces: tuple[str, str]) -> None:
        self.name = "bmv2"
        self.directory = tempfile.TemporaryDirectory(prefix="softswitch-bmv2-")
        self.process: subprocess.Popen[bytes] | None = None
        self.channel: grpc.Channel | None = None
        self.requests: queue.Queue[p4runtime_pb2.StreamMessageRequest | None] = queue.Queue()
        try:
            self._start(interfaces)
            self._fill(workload)
        except BaseException:
            self.close()
            raise

    @staticmethod
    def missing() -> str | None:
        """Why bmv2 cannot be measured; None when it can."""
        return None if shutil.which(BMV2) else f"{BMV2} is not on PATH"

    def _start(self, interfaces: tuple[str, str]) -> None:
        address = f"unix:{self.directory.name}/grpc"
        command = [BMV2, "--no-p4", "--device-id", "1"]
        for port, interface in enumerate(interfaces, 1):
            command += ["-i", f"{port}@{interface}"]
        command += ["--", "--grpc-server-addr", address]
        null = subprocess.DEVNULL
        self.process = subprocess.Popen(command, stdin=null, stdout=null, stderr=null)
        self.channel = grpc.insecure_channel(address)
        grpc.channel_ready_future(self.channel).result(DEADLINE)

    def _fill(self, workload: Workload) -> None:
        info = text_format.Parse(workload.p4info.read_text(), p4info_pb2.P4Info())
        stub = p4runtime_pb2_grpc.P4RuntimeStub(self.channel)
        stream = stub.StreamChannel(iter(self.requests.get, None))
        hello = p4runtime_pb2.StreamMessageRequest()
        hello.arbitration.device_id = 1
        hello.arbitration.election_id.low = 1
        self.requests.put(hello)
        next(stream)
        commit = p4runtime_pb2.SetForwardingPipelineConfigRequest.VERIFY_AND_COMMIT
        load = p4runtime_pb2.SetForwardingPipelineConfigRequest(device_id=1, action=commit)
        load.election_id.low = 1
        load.config.p4info.CopyFrom(info)
        load.config.p4_device_config = workload.program.read_bytes()
        stub.SetForwardingPipelineConfig(load, timeout=DEADLINE)
        write = p4runtime_pb2.WriteRequest(device_id=1)
        write.election_id.low = 1
        tables = {t.preamble.name: t for t in info.tables}
        actions = {a.preamble.name: a.preamble.id for a in info.actions}
        for row in workload.rows:
            entry = write.updates.add(type=p4runtime_pb2.Update.INSERT).entity.table_entry
            entry.table_id = tables[row.table].preamble.id
            for key, m in zip(tables[row.table].match_fields, row.match, strict=True):
                field = entry.match.add(field_id=key.id)
                if len(m) == 3:
                    field.lpm.value, field.lpm.prefix_len = _bytes(m[1]), m[2]
                else:
                    field.exact.value = _bytes(m[1])
            entry.action.action.action_id = actions[row.action]
            for number, value in enumerate(row.params, 1):
                entry.action.action.params.add(param_id=number, value=_bytes(value))
        stub.Write(write, timeout=DEADLINE)

    def cpu_seconds(self) -> float:
        assert self.process is not None
        return threads_seconds(self.process.pid)

    def close(self) -> None:
        self.requests.put(None)
        if self.channel is not None:
            self.channel.close()
        if self.process is not None:
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(10)
        self.directory.cleanup()


def _match(match: tuple[str, int] | tuple[str, int, int]) -> Match:
    return Match("lpm", match[1], prefix_len=match[2]) if len(match) == 3 else Match("exact", match[1])


def _bytes(value: int) -> bytes:
    return value.to_bytes(max(1, (value.bit_length() + 7) // 8), "big")


def is_root() -> bool:
    return os.geteuid() == 0
