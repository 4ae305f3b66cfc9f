"""A switch process to deploy to."""

from __future__ import annotations

from pathlib import Path

from controlplane.common.rpc.tls import Tls
from controlplane.targets.base import SwitchAddress, TargetError
from controlplane.targets.p4runtime.session import ask
from softswitch.tests.support import switches
from tests.support.waiting import wait_until
from topologies.ports import free_port

START_SECONDS = 60.0
DEVICE_ID = 7


class Switch(switches.Switch):
    """Device 7, which keeps its TCP port over restarts."""

    def __init__(self, kind: str, folder: Path, tls: dict[str, Path] | None = None) -> None:
        options: list[str] = []
        if tls is not None:
            options += ["--grpc-server-ssl", "--grpc-server-with-client-auth"]
            options += ["--grpc-server-cert", str(tls["server.pem"]), "--grpc-server-key", str(tls["server.key"])]
            options += ["--grpc-server-cacert", str(tls["ca.pem"])]
        super().__init__(kind, folder, device_id=DEVICE_ID, address=f"127.0.0.1:{free_port()}", options=options)

    def start(self, tls: Tls | None = None, name: str = "s") -> None:
        """Return when the switch answers, to a client named `name`."""
        super().start()

        def answers() -> bool:
            try:
                ask(SwitchAddress(name, self.address, DEVICE_ID, tls), 1.0)
            except TargetError:
                assert self.status() is None, self.log()
                return False
            return True

        wait_until(answers, self.log, START_SECONDS)
