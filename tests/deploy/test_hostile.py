"""A hundred hostile inputs for everything that a controller reads: nothing crashes or changes, and each is answered in
words. For frames see tests/emulation/test_hostile.py; for P4Runtime and bmv2 JSON see tests/fuzz/hostile.py.
"""

from __future__ import annotations

import json
import random
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message

from controlplane.common.access import TokenError
from controlplane.common.rpc import inart_pb2 as pb
from controlplane.common.rpc.channels import open_channel
from controlplane.common.rpc.client import fetch_status
from controlplane.common.rpc.stubs import METHODS, SERVICE, ControllerStub
from controlplane.common.tokens import load_tokens
from controlplane.planner.generators import testbed as make_testbed
from controlplane.planner.job import Job, JobError, parse_job
from controlplane.planner.plan import Plan, PlanError
from controlplane.planner.strategies import get_strategy
from controlplane.planner.topology import Topology, TopologyError
from controlplane.service.controller import Controller
from controlplane.service.journal import logger_of
from controlplane.service.measure import Measurements
from controlplane.service.snapshot import Snapshots
from controlplane.service.state import StateError, StateFolder
from controlplane.service.web.server import Site, Web
from controlplane.targets.p4runtime.kind import P4RuntimeKind
from controlplane.targets.switches_file import SwitchesFileError, load_switches
from p4src.artifacts import find
from tests.deploy.test_jobs import ONE, Rig
from tests.fuzz.hostile import damaged

pytestmark = pytest.mark.timeout(400)
COUNT = 100
SECONDS = 60.0
WORDS = (
    "", "one", "two", "a/b", "../../etc/passwd", "x" * 5000, "\0", "workers=2,ps=1,name=one", "workers=-1", "{", "=",
    "workers=1e9", "fattree:k=4", "[" * 3000, '{"workers": {}}', '{"nodes": 3}', "c1.aggregation_mbps=-1", "c1", "h1",
    "c1.aggregation_mbps=nan", "c1-a1.used_bandwidth_mbps=1e400", "c1.aggregation_mbps=x", "nobody-nowhere", "\u202e",
)  # fmt: skip
NUMBERS = (0, 1, -1, 7, 1 << 31, (1 << 32) - 1, (1 << 63) - 1, -(1 << 63))
FLOATS = (0.0, -1.0, 1e308, float("nan"), float("inf"), float("-inf"))
BAD = (
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.UNAVAILABLE,
)


@pytest.fixture(scope="module")
def served(tmp_path_factory) -> Iterator[tuple[Rig, str, Snapshots]]:
    """Return a fat-tree of fake switches with one job, and its controller's address."""
    rig = Rig(tmp_path_factory.mktemp("hostile"), P4RuntimeKind(find("v1model", 4)))
    rig.add(ONE)
    rig.network.switches.watch()
    controller = Controller(rig.network, log=logger_of(rig.network.journal))
    port = controller.start("127.0.0.1:0")
    yield rig, f"127.0.0.1:{port}", Snapshots(rig.network, Measurements(rig.network))
    controller.stop()
    rig.network.close()


def fill(message: Message, source: random.Random) -> Message:
    """Return a message of the right type with random fields."""
    for field in message.DESCRIPTOR.fields:
        if source.random() < 0.4 or field.name == "dry_run":
            continue
        values: list[Any] = []
        many = field.is_repeated if hasattr(field, "is_repeated") else field.label == field.LABEL_REPEATED
        for _ in range(source.randrange(1, 4) if many else 1):
            if field.type == field.TYPE_STRING:
                values.append(source.choice(WORDS))
            elif field.type == field.TYPE_BOOL:
                values.append(source.random() < 0.5)
            elif field.type == field.TYPE_DOUBLE:
                values.append(source.choice(FLOATS))
            elif field.type != field.TYPE_MESSAGE:
                unsigned = field.type in (field.TYPE_UINT32, field.TYPE_UINT64)
                size = 31 if field.type in (field.TYPE_INT32, field.TYPE_UINT32, field.TYPE_ENUM) else 63
                number = source.choice(NUMBERS)
                values.append(abs(number) % (1 << size) if unsigned or field.type == field.TYPE_ENUM else number)
        if not values:
            continue
        if many:
            getattr(message, field.name).extend(values)
        else:
            setattr(message, field.name, values[0])
    return message


def random_bytes(source: random.Random) -> bytes:
    return source.choice(
        (source.randbytes(source.randrange(1, 400)), b"\xff" * 64, b"\x0a\xff\xff\xff\xff\x0f", b"\x0a\x02\xff\xfe")
    )


@pytest.mark.parametrize("method", list(METHODS))
def test_grpc(served, method):
    """Yield messages of the right type with random fields, and bytes that are no messages."""
    rig, address, _ = served
    before = rig.snapshot()
    plan = rig.network.jobs.get("one").plan
    source = random.Random(method)
    name, request, reply = METHODS[method]
    answers = {True: 0, False: 0}
    with open_channel(address) as channel:
        raw: Any = (channel.unary_stream if method == "join" else channel.unary_unary)(
            f"/{SERVICE}/{name}", request_serializer=None, response_deserializer=reply.FromString
        )
        for number in range(COUNT):
            whole = number % 4 != 0
            data = fill(request(), source).SerializeToString() if whole else random_bytes(source)
            if method == "add_job":  # A valid job is only planned here.
                data += pb.AddJobRequest(dry_run=True).SerializeToString()
            if method == "replan":
                data += pb.ReplanRequest(dry_run=True).SerializeToString()
            if method == "remove_job" and whole:
                data += pb.RemoveJobRequest(name=source.choice(("two", "One"))).SerializeToString()
            try:
                answer = raw(data, timeout=SECONDS)
                if method == "join":
                    event = next(answer)
                    answer.cancel()
                    if event.WhichOneof("kind") == "refused":
                        assert event.refused.reason
                        answers[False] += 1
                        continue
                answers[True] += 1
            except grpc.RpcError as error:
                assert error.code() not in BAD, f"{data!r}: {error.code()}: {error.details()}"
                assert error.details(), "no words"
                answers[False] += 1
        assert ControllerStub(channel).status(pb.StatusRequest(), timeout=SECONDS).jobs[0].name == "one"
    assert answers[False] >= COUNT // 5, "bytes that are no message are refused"
    assert rig.snapshot() == before
    assert rig.network.jobs.get("one").plan == plan
    assert len(rig.network.jobs) == 1


def speak(port: int, data: bytes) -> bytes:
    """Return the answer to these bytes."""
    with socket.create_connection(("127.0.0.1", port), timeout=SECONDS) as connection:
        try:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            return b"".join(iter(lambda: connection.recv(1 << 16), b""))
        except (ConnectionError, TimeoutError):
            return b""


def test_sockets_of_the_page(served):
    """Yield requests that are no HTTP, are too long, or ask for missing pages."""
    _, _, snapshots = served
    web = Web("127.0.0.1:0")
    web.start(Site(snapshots))
    port = int(web.url.rstrip("/").rpartition(":")[2])
    source = random.Random(1)
    paths = (
        "/",
        "/metrics",
        "/../../etc/passwd",
        "/static/../server.py",
        "//",
        "/%00",
        "/api/page?" + "x" * 3000,
        "*",
        "http://x/",
    )
    try:
        for number in range(COUNT):
            choice = number % 5
            if choice == 0:
                data = source.randbytes(source.randrange(1, 3000))
            elif choice == 1:
                data = (
                    f"{source.choice(('POST', 'PUT', 'DELETE', 'FOO', 'get'))} / HTTP/1.1\r\nHost: x\r\n\r\n".encode()
                )
            elif choice == 2:
                data = f"GET {source.choice(paths)} HTTP/1.1\r\nConnection: close\r\n\r\n".encode()
            elif choice == 3:
                data = (
                    b"GET / HTTP/1.1\r\n"
                    + b"".join(b"X%d: y\r\n" % n for n in range(source.randrange(1, 300)))
                    + b"\r\n"
                )
            else:
                data = b"GET /" + b"a" * source.choice((10, 70000)) + b" HTTP/1.1\r\n\r\n"
            answer = speak(port, data)
            if choice in (1, 2):
                assert answer.startswith(b"HTTP/1."), data
                assert b"Traceback" not in answer
                assert b"root:" not in answer
        assert speak(port, b"GET /api/snapshot HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 200")
    finally:
        web.close()


def test_sockets_of_the_controller(served):
    """Yield bytes for the gRPC port that are no HTTP/2, or end in its middle."""
    _, address, _ = served
    source = random.Random(2)
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    for number in range(COUNT):
        noise = source.randbytes(source.randrange(1, 2000))
        head = (b"", preface, preface + b"\0\0\0\4\0\0\0\0\0", b"GET / HTTP/1.1\r\n\r\n")[number % 4]
        speak(int(address.rpartition(":")[2]), head + noise)
    assert fetch_status(address).jobs[0].name == "one"


# -- files ------------------------------------------------------------------------------------------------------------

NET = make_testbed()
JOB = parse_job("workers=4,ps=2", NET)
PLAN = get_strategy("inart")(NET, JOB)
TEXTS = ("", "{", "[]", "null", "3", '"x"', "[" * 100_000, '{"a":' * 50_000, "\0", "\ufeff{}", "NaN", "{}", "é")


def plan_file(path: Path) -> None:
    Plan.load(path).check(NET)


def state_file(path: Path) -> None:
    folder = path.parent / "state"
    folder.mkdir(exist_ok=True)
    (folder / "jobs.json").write_bytes(path.read_bytes())
    with StateFolder(folder) as state:
        state.load()


def token_file(path: Path) -> None:
    path.chmod(0o600)
    load_tokens(path)


FILES: dict[str, tuple[Any, Callable[[Path], object], tuple[type[Exception], ...]]] = {
    "topology": (NET.to_json(), Topology.load, (TopologyError,)),
    "job": (JOB.to_json(), lambda path: parse_job(str(path), NET), (JobError, TopologyError)),
    "plan": (PLAN.to_json(), plan_file, (PlanError, JobError, TopologyError)),
    "switches": (
        {
            "V1": {"address": "127.0.0.1:9559", "device_id": 1, "tls": {"authority": "x"}},
            "V2": {"address": "h:2", "device_id": 2},
        },
        load_switches,
        (SwitchesFileError,),
    ),
    "state": (None, state_file, (StateError,)),
    "tokens": ("0123456789abcdef node W1\n", token_file, (TokenError,)),
}  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every member of a JSON value."""
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from places(inner, (*path, key))


@pytest.mark.parametrize("kind", list(FILES))
def test_files(served, tmp_path, kind):
    """Damaged files are refused with their own error, in words, or are files like any other."""
    root, load, errors = FILES[kind]
    if kind == "state":
        rig, *_ = served
        with StateFolder(tmp_path / "whole") as state:
            state.save(rig.network.keeps())
        root = json.loads((tmp_path / "whole/jobs.json").read_text())
    source = random.Random(kind)
    ways = list(places(root)) if not isinstance(root, str) else []
    file = tmp_path / "file.json"
    refused = 0
    for number in range(COUNT + len(TEXTS)):
        if number < len(TEXTS):
            file.write_text(TEXTS[number])
        elif number % 10 == 0 or not ways:
            text = bytearray((root if isinstance(root, str) else json.dumps(root)).encode())
            for _ in range(source.randrange(1, 6)):
                text[source.randrange(len(text))] = source.randrange(256)
            file.write_bytes(text)
        else:
            file.write_text(json.dumps(damaged(root, ways, source)))
        try:
            load(file)
        except errors as error:
            refused += 1
            assert str(error), "no words"
            assert len(str(error)) < 20_000
    assert refused >= len(TEXTS) - 2


def test_jobs_of_a_request(served):
    """What `job add` is given, as text: refused in words."""
    rig, address, _ = served
    root = Job("x", ONE.workers, ONE.parameter_servers, 1_000_000).to_json()
    ways = list(places(root))
    source = random.Random(5)
    with open_channel(address) as channel:
        for number in range(COUNT):
            text = TEXTS[number] if number < len(TEXTS) else json.dumps(damaged(root, ways, source))
            try:
                ControllerStub(channel).add_job(pb.AddJobRequest(job=text, dry_run=True), timeout=SECONDS)
            except grpc.RpcError as error:
                assert error.code() in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION), (
                    f"{text[:200]}: {error.code()}: {error.details()}"
                )
                assert error.details()
    assert len(rig.network.jobs) == 1
