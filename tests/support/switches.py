"""Switch processes that serve P4Runtime: softswitch, and bmv2's simple_switch_grpc."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from pathlib import Path

from controlplane.rpc.tls import Tls
from controlplane.targets.base import TargetError
from controlplane.targets.p4runtime.session import ask

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 60.0


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


class Switch:
    """A switch process without program and interfaces, as device 7."""

    def __init__(self, kind: str, folder: Path, tls: dict[str, Path] | None = None) -> None:
        self.kind = kind
        self.address = f"127.0.0.1:{free_port()}"
        server = ["--grpc-server-addr", self.address]
        if tls is not None:
            server += ["--grpc-server-ssl", "--grpc-server-with-client-auth"]
            server += ["--grpc-server-cert", str(tls["server.pem"]), "--grpc-server-key", str(tls["server.key"])]
            server += ["--grpc-server-cacert", str(tls["ca.pem"])]
        if kind == "softswitch":
            self._command = [sys.executable, "-m", "softswitch", "--no-p4", "--device-id", "7", *server]
        else:
            self._command = ["simple_switch_grpc", "--no-p4", "--device-id", "7", "--", *server]
        self._log = folder / "switch.log"
        self._folder = folder
        self.process: subprocess.Popen | None = None

    def start(self, tls: Tls | None = None) -> None:
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(self._command, cwd=ROOT, stdout=log, stderr=log)
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                ask("s", self.address, 7, 1.0, tls)
                return
            except TargetError:
                assert self.process.poll() is None, self._log.read_text()
                assert time.monotonic() < deadline, self._log.read_text()
                time.sleep(0.05)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
