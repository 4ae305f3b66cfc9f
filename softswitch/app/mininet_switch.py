"""Makes softswitch a switch for Mininet.

    mn --custom softswitch/app/mininet_switch.py --controller none \\
        --switch softswitch,json=prog.json,p4info=prog.p4info.txtpb

or in a script, where each switch may have a program of its own:

    net = Mininet(switch=SoftSwitch, controller=None)
    s1 = net.addSwitch("s1", json="prog.json", p4info="prog.p4info.txtpb")
    net.start()
    s1.grpc                      # where P4Runtime is served: "127.0.0.1:50051"

Ports have Mininet's numbers (the first link is port 1). A switch is a process of its own in the root namespace.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

from mininet.node import Switch


class SoftSwitch(Switch):
    """A P4 switch in software, for Mininet.

    Args:
        json: bmv2 JSON of the program; None: it waits for one over P4Runtime.
        p4info: P4Info of that program, so that P4Runtime clients find it installed.
        device_id: P4Runtime's device id; None: the number in the switch's name.
        options: further options of `python -m softswitch`.

    Attributes:
        grpc: the address of its P4Runtime server, once it has started.
        log: the file with its output, made by `start`; only its owner can read it.
    """

    _taken: ClassVar[int] = 0

    def __init__(
        self,
        name: str,
        json: str | None = None,
        p4info: str | None = None,
        device_id: int | None = None,
        options: Iterable[str] = (),
        **params: Any,
    ) -> None:
        super().__init__(name, **params)
        digits = "".join(letter for letter in name if letter.isdigit())
        SoftSwitch._taken += 1
        self.device_id = device_id if device_id is not None else int(digits or SoftSwitch._taken)
        self._program = ["--no-p4"] if json is None else [json]
        if p4info is not None:
            self._program += ["--p4info", p4info]
        self._options = list(options)
        self._process: subprocess.Popen[str] | None = None
        self.grpc = ""
        self.log = Path()

    def start(self, controllers: Any) -> None:
        """Start the switch, and return when it serves.

        Raise RuntimeError with the end of its output if it does not start.
        """
        command = [sys.executable, "-m", "softswitch", *self._program, "--device-id", str(self.device_id)]
        for port, interface in sorted(self.intfs.items()):
            if interface.name != "lo":
                command += ["-i", f"{port}@{interface.name}"]
        command += ["--grpc-server-addr", "127.0.0.1:0", *self._options]
        # A name that others could guess would let them choose, by a link, which file root overwrites.
        handle, path = tempfile.mkstemp(prefix=f"softswitch-{self.name}-", suffix=".log")
        self.log = Path(path)
        with os.fdopen(handle, "w") as log:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self._process.stdout is not None
        ready = self._process.stdout.readline()
        if not ready.startswith("READY"):
            self._process.wait()
            raise RuntimeError(f"{self.name} did not start: {self.log.read_text().strip()[-2000:]}")
        words = dict(word.split("=", 1) for word in ready.split()[1:])
        self.grpc = words["grpc"].split(",")[0]

    def stop(self, deleteIntfs: bool = True) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            process.terminate()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
        super().stop(deleteIntfs)


switches = {"softswitch": SoftSwitch}
"""The switches of this module, under the name that `mn --custom` looks for."""
