"""An etcd of one member on this machine, as the store of controllers on this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from controlplane.common import tied
from controlplane.service.pair.etcd import EtcdStore
from controlplane.service.pair.store import StoreError
from topologies.network import EmulationError
from topologies.ports import free_ports

START_SECONDS = 60.0
INSTALL = "apt-get install --no-install-recommends etcd-server"


def installed() -> bool:
    """Return whether etcd is on PATH."""
    return shutil.which("etcd") is not None


class Etcd:
    """Runs an etcd on loopback, from its creation until `close`, or until this process dies. A context manager.

    It does not wait for the disk: its data does not survive a power failure. Raises EmulationError if etcd is not
    installed or does not start.

    Attributes:
        address: its "HOST:PORT" for clients.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str] = os.environ) -> None:
        if not installed():
            raise EmulationError(f"etcd is not on PATH: run make setup, or {INSTALL}")
        folder.mkdir(parents=True, exist_ok=True)
        ports = free_ports(2)
        client, peer = (f"http://127.0.0.1:{port}" for port in ports)
        command = [
            sys.executable, "-I", "-S", tied.__file__, str(os.getpid()),
            "etcd", "--data-dir", str(folder / "data"), "--listen-client-urls", client,
            "--advertise-client-urls", client, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
            "--initial-cluster", f"default={peer}", "--unsafe-no-fsync",
        ]  # fmt: skip
        self._log = folder / "log"
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                command, env=dict(environment), stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        self.address = f"127.0.0.1:{ports[0]}"
        try:
            self._wait()
        except BaseException:
            self.close()
            raise

    def _wait(self) -> None:
        """Return when it answers. Raise EmulationError if it does not."""
        store, deadline = EtcdStore([self.address], "/probe"), time.monotonic() + START_SECONDS
        while True:
            try:
                store.read("ready")
                return
            except StoreError as error:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    words = self._log.read_text(errors="replace")[-2000:]
                    raise EmulationError(f"etcd does not start ({error}):\n{words}") from None
            time.sleep(0.02)

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Etcd:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
