"""softswitch as a switch of Mininet: a frame from one host arrives at the other, through the program."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.namespaces,
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root"),
    pytest.mark.skipif(shutil.which("mnexec") is None, reason="Mininet's mnexec is not installed (Debian: mininet)"),
]
PROGRAMS = Path(__file__).parent / "conformance" / "programs"
# registers.p4 sends what it gets to port 1, which is h1's; the first byte selects the register.
FRAME = "02000005" + "aa" * 60
SEND = "import socket, sys; s = socket.socket(17, 3); s.bind((sys.argv[1], 0)); s.send(bytes.fromhex(sys.argv[2]))"
RECEIVE = """
import socket, sys
s = socket.socket(17, 3, socket.htons(3)); s.bind((sys.argv[1], 0)); s.settimeout(30)
print('listens', flush=True)
while (frame := s.recv(2000))[:4].hex() != '02000005': pass
print(frame.hex(), flush=True)
"""


def test_a_frame_crosses_the_switch(capfd):
    pytest.importorskip("mininet")
    from mininet.net import Mininet

    from softswitch.app.mininet_switch import SoftSwitch

    net = Mininet(switch=SoftSwitch, controller=None)
    h1, h2 = net.addHost(f"h1x{os.getpid()}"), net.addHost(f"h2x{os.getpid()}")
    switch = net.addSwitch(f"s{os.getpid()}", json=str(PROGRAMS / "registers.json"), device_id=1)
    for host in (h1, h2):
        net.addLink(switch, host, intfName1=f"p{host.name}"[:15], intfName2="data0")
    try:
        net.start()
        assert switch.grpc.startswith("127.0.0.1:")
        receiver = h1.popen([sys.executable, "-c", RECEIVE, "data0"], stdout=subprocess.PIPE)
        assert receiver.stdout.readline() == b"listens\n"
        sender = h2.popen([sys.executable, "-c", SEND, "data0", FRAME])
        assert sender.wait(30) == 0
        assert receiver.stdout.readline().strip().decode().startswith("02000005")
        receiver.wait(30)
    finally:
        net.stop()
    assert switch.log.read_text() == ""
    switch.log.unlink()


def test_a_program_that_is_not_there_is_named(tmp_path):
    pytest.importorskip("mininet")
    from softswitch.app.mininet_switch import SoftSwitch

    switch = SoftSwitch("s9999", json=str(tmp_path / "none.json"))
    with pytest.raises(RuntimeError, match=r"s9999 did not start: .*none\.json"):
        switch.start([])
    switch.stop()
    switch.log.unlink()
