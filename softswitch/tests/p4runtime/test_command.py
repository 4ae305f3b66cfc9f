"""``python -m softswitch`` as a process: start, READY, control, signals, and messages about wrong arguments."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

import softswitch
from softswitch.__main__ import main
from softswitch.app import control, options
from softswitch.dataplane import pcap
from softswitch.p4runtime.stubs import p4runtime_pb2 as p4rt
from softswitch.p4runtime.stubs import p4runtime_pb2_grpc
from softswitch.p4runtime.unknown import API_VERSION
from softswitch.tests.p4runtime.client import FORWARD, KEYLESS, Client, action, demo_p4info, insert
from softswitch.tests.p4runtime.fake import PROGRAM_JSON
from softswitch.tests.support.p4runtime import MODIFY, update

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler (cc)")

HERE = Path(__file__).parent
PROGRAM = ["--p4info", str(HERE / "demo.p4info.txtpb"), str(HERE / "demo.json")]
LOCAL = ["--grpc-server-addr", "127.0.0.1:0"]
FRAME = bytes.fromhex("0000000000020000000000011234") + b"payload"


class Process:
    """A softswitch process that has printed READY."""

    def __init__(self, *arguments: str, prefix: tuple[str, ...] = ()) -> None:
        reading, writing = os.pipe()
        self.popen = subprocess.Popen(
            [*prefix, sys.executable, "-m", "softswitch", *arguments, "--ready-fd", str(writing)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            pass_fds=[writing],
            cwd=HERE.parents[2],
        )
        os.close(writing)
        with os.fdopen(reading) as channel:
            ready = channel.readline()  # the channel ends when the process does
        if not ready:
            self.popen.kill()
            pytest.fail(f"softswitch did not start: {self.popen.communicate()[1]}")
        assert self.popen.stdout is not None
        assert self.popen.stdout.readline() == ready
        assert ready.startswith("READY ")
        self.ready = dict(word.split("=", 1) for word in ready.split()[1:])

    def end(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, str]:
        """End the process; returns its exit status and stderr."""
        if self.popen.poll() is None:
            self.popen.send_signal(number)
        try:
            _, errors = self.popen.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            raise
        return self.popen.returncode, errors


Start = Callable[..., Process]


@pytest.fixture
def start() -> Iterator[Start]:
    running: list[Process] = []

    def run(*arguments: str, prefix: tuple[str, ...] = ()) -> Process:
        running.append(Process(*arguments, prefix=prefix))
        return running[-1]

    yield run
    for process in running:
        process.end()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_one_switch(start: Start, number: signal.Signals) -> None:
    process = start(*PROGRAM, "--device-id", "3", "--cpu-port", "255", "--", *LOCAL)
    assert process.ready["devices"] == "3"
    client = Client(process.ready["grpc"], device_id=3)
    stream = client.become_primary()
    assert client.get_pipeline().config.p4info == demo_p4info()
    assert process.end(number) == (0, "")
    assert stream.ended() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
    client.close()


def test_no_p4_waits_for_a_pipeline(start: Start, tmp_path: Path) -> None:
    process = start("--no-p4", "--device-id", "1", "--grpc-server-addr", f"unix:{tmp_path}/grpc", *LOCAL)
    addresses = process.ready["grpc"].split(",")
    assert len(addresses) == 2
    for address in addresses:
        client = Client(address)
        stream = client.become_primary()
        client.set_pipeline(PROGRAM_JSON)
        stream.half_close()
        assert stream.ended() == grpc.StatusCode.OK
        client.close()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl to make a certificate with")
def test_tls(start: Start, tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    names = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    subprocess.run([*make, *names, "-keyout", key, "-out", certificate], check=True, capture_output=True, timeout=60)
    files = ["--grpc-server-cert", str(certificate), "--grpc-server-key", str(key)]
    process = start("--no-p4", "--device-id", "1", "--grpc-server-ssl", *files, *LOCAL)
    credentials = grpc.ssl_channel_credentials(certificate.read_bytes())
    request = p4rt.CapabilitiesRequest()
    with grpc.secure_channel(process.ready["grpc"], credentials) as channel:
        assert p4runtime_pb2_grpc.P4RuntimeStub(channel).Capabilities(request, timeout=10).p4runtime_api_version
    with grpc.insecure_channel(process.ready["grpc"]) as channel, pytest.raises(grpc.RpcError):
        p4runtime_pb2_grpc.P4RuntimeStub(channel).Capabilities(request, timeout=10)


def write_fabric(folder: Path, **more: Any) -> Path:
    description = {
        "grpc": "127.0.0.1:0",
        "control": "control.sock",
        "devices": [
            {
                "id": 1,
                "name": "left",
                "cpu_port": 255,
                "pcap": ".",
                "program": str(HERE / "demo.json"),
                "p4info": str(HERE / "demo.p4info.txtpb"),
                "ports": [{"port": 1, "peer": {"device": "right", "port": 2}}],
            },
            {
                "id": 2,
                "name": "right",
                "cpu_port": 255,
                "ports": [{"port": 2, "peer": {"device": "left", "port": 1}, "shape": {"rate_mbps": 100}}],
            },
        ],
    }
    (folder / "fabric.json").write_text(json.dumps(description | more))
    return folder / "fabric.json"


def packet_out(port: int) -> p4rt.StreamMessageRequest:
    message = p4rt.StreamMessageRequest(packet=p4rt.PacketOut(payload=FRAME))
    message.packet.metadata.add(metadata_id=1, value=port.to_bytes(2, "big"))
    message.packet.metadata.add(metadata_id=2, value=b"\x00")
    return message


def ctl(path: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "softswitch", "ctl", path, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=HERE.parents[2],
    )


def test_fabric(start: Start, tmp_path: Path) -> None:
    process = start("fabric", str(write_fabric(tmp_path)), "--seed", "3")
    path = process.ready["control"]
    left, right = (Client(process.ready["grpc"], device_id=number) for number in (1, 2))
    stream, other = left.become_primary(), right.become_primary()
    assert left.get_pipeline().HasField("config") and not right.get_pipeline().HasField("config")
    to_cpu = p4rt.TableEntry(table_id=KEYLESS, is_default_action=True, action=action(FORWARD, b"\xff"))

    def fill() -> None:
        right.set_pipeline(PROGRAM_JSON)
        right.write(update(MODIFY, table_entry=to_cpu))

    fill()
    stream.send(packet_out(1))  # out of left's port 1, over the link, to right's CPU port
    assert other.next().packet.payload == FRAME
    assert [frame for _, frame in pcap.read(tmp_path / "left-1_out.pcap")] == [FRAME]
    assert not (tmp_path / "right-2_in.pcap").exists()

    def left_port() -> dict[str, Any]:
        return json.loads(ctl(path, "stats", "left").stdout)["devices"]["1"]["ports"]["1"]

    assert left_port()["tx_packets"] == 1
    assert json.loads(ctl(path, "shape", "left", "1", "loss=1").stdout) == {"loss": 1.0}
    stream.send(packet_out(1))
    # This shows that the previous one has been sent: it goes out and comes in again on left itself.
    stream.send(packet_out(255))
    assert stream.next().packet.payload == FRAME
    assert sum(left_port()["drops"].values()) == 1
    assert control.call(path, "shape", device="left", port=1, shape={"loss": 0})["loss"] == 0

    assert ctl(path, "reboot", "right").returncode == 0
    assert other.ended() == grpc.StatusCode.UNAVAILABLE
    other = right.become_primary()
    assert not right.get_pipeline().HasField("config")
    assert stream.quiet()  # the other switch was not affected
    fill()
    stream.send(packet_out(1))
    assert other.next().packet.payload == FRAME

    refused = ctl(path, "shape", "left", "1", "lost=1")
    assert refused.returncode == 1 and "unknown shaping 'lost'" in refused.stderr
    assert process.end() == (0, "")
    assert not Path(path).exists()
    gone = ctl(path, "stats")
    assert gone.returncode == 1 and path in gone.stderr
    left.close()
    right.close()


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        ([], 2, "--no-p4"),
        (["--no-p4", "prog.json"], 2, "exclude"),
        (["--no-p4", "-i", "veth0"], 2, "PORT@INTERFACE"),
        (["--no-p4", "-i", "0@inart-no-such", *LOCAL], 1, "inart-no-such"),
        (["--no-p4", "--cpu-port", "600", *LOCAL], 1, "cpu_port"),
        (["/nowhere/prog.json", *LOCAL], 1, "/nowhere/prog.json"),
        ([str(HERE / "fake.py"), *LOCAL], 1, "JSON"),
        (["--no-p4", "--grpc-server-addr", "nonsense"], 1, "cannot listen on nonsense"),
        (["--no-p4", "--grpc-server-addr", "127.0.0.1:65536"], 1, "port 65536 is above 65535"),
        (["--no-p4", "--grpc-server-addr", "127.0.0.1:75095"], 1, "port 75095 is above 65535"),
        (["--no-p4", "--grpc-server-addr", "127.0.0.1:http"], 1, "give HOST:PORT"),
        (["--no-p4", "--grpc-server-ssl", *LOCAL], 1, "--grpc-server-cert"),
        (["--p4info", str(HERE / "fake.py"), str(HERE / "demo.json"), *LOCAL], 1, "not a P4Info"),
        (["/nowhere.json", *LOCAL], 1, "cannot read /nowhere.json: No such file"),
        ([str(HERE / "fake.py"), *LOCAL], 1, "fake.py: not JSON"),
        (["--p4info", "/nowhere.txtpb", str(HERE / "demo.json"), *LOCAL], 1, "cannot read /nowhere.txtpb"),
        (["fabric", "/nowhere.json"], 1, "/nowhere.json"),
        (["fabric", str(HERE / "demo.json")], 1, "'devices' is missing"),
        (["ctl", "/nowhere.sock", "stats"], 1, "/nowhere.sock"),
        (["--no-p4", "--pcap", "prog.json"], 2, "exclude"),  # it looks like the program, not like a folder
        (["--no-p4", "--packet-in", "tcp://127.0.0.1:9", *LOCAL], 1, "give ipc://FILE"),
        (["--no-p4", "--priority-queues", "0", *LOCAL], 2, "1 to 8"),
    ],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, list) else str(value),
)
def test_mistakes_are_explained(
    arguments: list[str], status: int, text: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gc.set_threshold", lambda *numbers: None)  # It is this process's.
    try:
        found: object = main(arguments)
    except SystemExit as ended:
        found = ended.code
    said = capsys.readouterr()
    assert (found, said.out) == (status, "") and text in said.err


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    file = write_fabric(tmp_path)
    file.write_text(file.read_text().replace('"pcap": "."', '"pcap": "none"'))
    done = run("fabric", str(file))
    assert done.returncode == 1
    assert f"cannot record into {tmp_path}/none/left-1_in.pcap: No such file" in done.stderr


def test_version() -> None:
    assert run("--version").stdout == f"softswitch {softswitch.__version__}, P4Runtime {API_VERSION}\n"


def test_options_of_simple_switch_grpc(start: Start, tmp_path: Path) -> None:
    habits = ["--thrift-port", "9090", "--nanolog", "ipc:///tmp/log.ipc", "--drop-port", "511", "--log-flush"]
    habits += ["--log-file", str(tmp_path / "log"), "--pcap", str(tmp_path), "--priority-queues", "8"]
    habits += ["--dump-packet-data", "10000"]  # as in the PTF scripts of p4lang's tutorials
    process = start("--no-p4", *habits, "--", "--grpc-server-addr", "127.0.0.1:0")
    status, errors = process.end()
    assert status == 0
    warnings = [line.removeprefix("softswitch: warning: ") for line in errors.splitlines()]
    named = [line.split(":")[0] for line in warnings]
    assert named == ["--thrift-port", "--nanolog", "--dump-packet-data"]


def test_a_log_may_go_to_the_console_and_to_a_file(start: Start, tmp_path: Path) -> None:
    file = tmp_path / "log"
    process = start(*PROGRAM, "--log-console", "--log-file", str(file), "-L", "info", *LOCAL)
    client = Client(process.ready["grpc"], device_id=0)
    client.become_primary()
    with pytest.raises(grpc.RpcError):
        client.write(insert(p4rt.TableEntry(table_id=1)))  # there is no such table
    client.close()
    status, errors = process.end()
    assert status == 0
    assert "device 0: " in file.read_text()
    assert file.read_text() == errors


@pytest.mark.parametrize(
    ("arguments", "folder"),
    [
        (["--pcap", "records", "prog.json"], "records"),
        (["--pcap=records", "prog.json"], "records"),
        (["--pcap", "prog.json"], "."),
        (["prog.json", "--pcap"], "."),
        (["prog.json", "--pcap", "-i", "0@veth0"], "."),
        (["prog.json"], None),
    ],
)
def test_the_folder_of_recordings(arguments: list[str], folder: str | None) -> None:
    (device,) = options.single(arguments)[0].devices
    assert device.program == Path("prog.json")
    assert device.pcap == (None if folder is None else Path(folder))


# This code sends a frame into one interface and prints what comes out of another.
THROUGH = """
import socket, sys
sockets = [socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)) for _ in range(2)]
for each, name in zip(sockets, sys.argv[1:3]):
    each.bind((name, 0))
    each.settimeout(10)
frame = bytes.fromhex(sys.argv[3])
sockets[0].send(frame)
while (found := sockets[1].recv(2048)) != frame:
    pass
print(found.hex())
"""


@pytest.mark.namespaces
@pytest.mark.skipif(os.geteuid() != 0, reason="making network namespaces needs root")
@pytest.mark.skipif(shutil.which("ip") is None, reason="there is no ip command (iproute2)")
def test_frames_through_linux_interfaces(start: Start, tmp_path: Path) -> None:
    namespace = f"inart-t-{secrets.token_hex(4)}"
    inside = ("ip", "netns", "exec", namespace)

    def run(*command: str) -> str:
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout

    run("ip", "netns", "add", namespace)
    try:
        for number in (0, 1):
            run(*inside, "ip", "link", "add", f"veth{number}", "type", "veth", "peer", "name", f"host{number}")
            for name in (f"veth{number}", f"host{number}"):
                run(*inside, "sysctl", "-qw", f"net.ipv6.conf.{name}.disable_ipv6=1")
                run(*inside, "ip", "link", "set", name, "up")
        address = f"unix:{tmp_path}/grpc"
        ports = ["-i", "0@veth0", "-i", "1@veth1", f"--pcap={tmp_path}"]
        ports += ["--control", str(tmp_path / "control")]
        process = start(*PROGRAM, *ports, "--device-id", "1", "--grpc-server-addr", address, prefix=inside)
        client = Client(address)
        client.become_primary()
        entry = p4rt.TableEntry(table_id=KEYLESS, is_default_action=True, action=action(FORWARD, b"\x01"))
        client.write(update(MODIFY, table_entry=entry))
        printed = run(*inside, sys.executable, "-c", THROUGH, "host0", "host1", FRAME.hex())
        assert printed.strip() == FRAME.hex()
        for name in ("veth0_in", "veth1_out"):
            assert FRAME in [frame for _, frame in pcap.read(tmp_path / f"{name}.pcap")]
        # Port 1 moves to another interface while the switch runs.
        run(*inside, "ip", "link", "add", "veth2", "type", "veth", "peer", "name", "host2")
        for name in ("veth2", "host2"):
            run(*inside, "ip", "link", "set", name, "up")
        path = process.ready["control"]
        taken = ctl(path, "port", "add", "1", "1", "veth2")
        assert taken.returncode == 1 and "device 1 port 1 is there already: remove it first" in taken.stderr
        used = ctl(path, "port", "add", "1", "2", "veth1")
        assert used.returncode == 1 and "interface veth1 is used by device 1 port 1" in used.stderr
        missing = ctl(path, "port", "add", "1", "2", "veth7")
        assert missing.returncode == 1 and "no interface 'veth7'" in missing.stderr
        assert ctl(path, "port", "remove", "1", "1").returncode == 0
        again = ctl(path, "port", "remove", "1", "1")
        assert again.returncode == 1 and "device 1 port 1 does not exist" in again.stderr
        assert ctl(path, "port", "add", "1", "1", "veth2").returncode == 0
        assert run(*inside, sys.executable, "-c", THROUGH, "host0", "host2", FRAME.hex()).strip() == FRAME.hex()
        client.close()
        assert process.end() == (0, "")
    finally:
        run("ip", "netns", "delete", namespace)


def send(client: Client, stream: Any, port: int = 9) -> None:
    """Send a packet-out that leaves by a port."""
    fields = ((1, bytes([port])), (2, b"\0"))
    metadata = [p4rt.PacketMetadata(metadata_id=number, value=value) for number, value in fields]
    stream.send(p4rt.StreamMessageRequest(packet=p4rt.PacketOut(payload=FRAME, metadata=metadata)))


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "softswitch", *arguments]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return subprocess.run(
        command, capture_output=True, text=True, timeout=30, cwd=HERE.parents[2], env=environment, check=False
    )


def test_stats_and_trace_of_a_running_switch(start: Start, tmp_path: Path) -> None:
    path = str(tmp_path / "control")
    process = start(*PROGRAM, "--cpu-port", "255", *LOCAL, "--control", path)
    client = Client(process.ready["grpc"], device_id=0)
    stream = client.become_primary()
    command = [sys.executable, "-m", "softswitch", "trace", path, "-n", "2", "--port", "255"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=HERE.parents[2]) as tracing:
        assert tracing.stdout is not None
        while tracing.poll() is None:  # the trace begins when the process has started
            send(client, stream)
            stream.arbitrate(1)
            stream.status()
        text = tracing.stdout.read()
    assert text.count("bytes came in on port 255") == 2
    assert "table MyIngress" not in text  # the program sends packet-outs on at once
    assert f"{len(FRAME)} bytes leave by port 9\n  dropped: no_such_port" in text
    table = run("stats", path)
    assert (table.returncode, table.stderr) == (0, "")
    assert "drops: no such port" in table.stdout
    assert "packet out" in table.stdout
    refused = run("stats", path, "s7")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "there is no device 's7'" in refused.stderr
    for wrong in ({"packets": 0}, {"seconds": -1}, {"in_port": 512}, {"device": "s7"}):
        with pytest.raises(control.ControlError):
            control.call(path, "trace", **{"device": 0} | wrong)
    client.close()


def test_every_packet_is_traced(start: Start) -> None:
    process = start(*PROGRAM, "--cpu-port", "255", "--trace", *LOCAL)
    client = Client(process.ready["grpc"], device_id=0)
    stream = client.become_primary()
    send(client, stream)
    assert process.popen.stdout is not None
    found = [process.popen.stdout.readline().rstrip("\n")]
    while "dropped" not in found[-1]:
        found.append(process.popen.stdout.readline().rstrip("\n"))
    assert found[0] == f"device 0: {len(FRAME) + 2} bytes came in on port 255"
    assert found[-1] == "  dropped: no_such_port"
    client.close()
    assert process.end() == (0, "")
