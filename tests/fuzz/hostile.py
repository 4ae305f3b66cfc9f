"""``python -m tests.fuzz.hostile``: damaged bmv2 JSON and damaged P4Runtime messages.

JSON: a few members of the repository's programs are changed, removed or exchanged. softswitch must refuse each
result with an error of its own or load it; some of those that load are built with sanitizers and given frames.
P4Runtime: random messages of the right type and random bytes are sent by every method to a served device. No answer
may be INTERNAL or UNKNOWN, and the server must still serve in the end.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from softswitch import Fabric, SoftswitchError
from softswitch.bmv2json.reader import read_program
from softswitch.compiler.codegen import generate
from softswitch.p4runtime import P4RuntimeServer
from softswitch.p4runtime.stubs import p4runtime_pb2 as p4rt
from softswitch.tests.conformance.control import Controller
from tests.fuzz.build import build, missing_sanitizers
from tests.fuzz.differential import OURS, ROOT

SLOW = 20.0  # Seconds that reading a damaged program may take.
HIGHEST = (1 << 128) - 1  # The highest election id.
PATIENCE = 60.0  # Seconds to wait for an answer: some requests read all registers.
FRAMES = 40  # Number of frames for a damaged program that is accepted.
VALUES: tuple[Any, ...] = (None, 0, 1, -1, 7, 8, 65, 1 << 32, 1 << 70, "", "0x", "0x1", "0xffffffffffffffffffffffff",
                           "no such thing", "$valid$", [], {}, [1, 2], True, False, 3.5)  # fmt: skip
METHODS = {"Write": p4rt.WriteRequest, "Read": p4rt.ReadRequest, "StreamChannel": p4rt.StreamMessageRequest,
           "SetForwardingPipelineConfig": p4rt.SetForwardingPipelineConfigRequest,
           "GetForwardingPipelineConfig": p4rt.GetForwardingPipelineConfigRequest,
           "Capabilities": p4rt.CapabilitiesRequest}  # fmt: skip
BATCH = re.compile(r"(update|query) \d+: ")
"""The beginning of a failed batch's message."""
FORBIDDEN = (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.DEADLINE_EXCEEDED,
             grpc.StatusCode.UNAVAILABLE)  # fmt: skip


@dataclass
class Tally:
    """Counts of what was tried and how it ended.

    ``findings``: descriptions of what should not happen, kept in ``folder``.
    """

    folder: Path
    outcomes: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)


# ---------------------------------------------------------------------------------------------------------------- JSON


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path to every member of a JSON value."""
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from _places(inner, (*path, key))


def _at(root: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        root = root[key]
    return root


def damaged(root: Any, places: list[tuple[Any, ...]], source: random.Random) -> Any:
    """Return a copy of a program with one to three members changed."""
    out = copy.deepcopy(root)
    for _ in range(source.choice((1, 1, 2, 3))):
        path = source.choice(places)
        try:
            parent, old = _at(out, path[:-1]), _at(out, path)
            choice = source.random()
            if choice < 0.2:
                del parent[path[-1]]
            elif choice < 0.45:
                parent[path[-1]] = copy.deepcopy(_at(root, source.choice(places)))
            elif choice < 0.6 and isinstance(old, int) and not isinstance(old, bool):
                parent[path[-1]] = old + source.choice((-1, 1, 8, 64, 1000))
            elif choice < 0.7 and isinstance(parent, list):
                parent.insert(path[-1], copy.deepcopy(old))
            else:
                parent[path[-1]] = copy.deepcopy(source.choice(VALUES))
        except (LookupError, TypeError):
            continue  # An earlier change removed this member.
    return out


def fuzz_json(seconds: float, source: random.Random, compiler: str | None, folder: Path) -> Tally:
    """Fuzz the JSON loader.

    ``compiler``: builds accepted programs with sanitizers and runs them; with None they are not run.
    """
    tally = Tally(folder)
    roots = [json.loads(path.read_text()) for each in OURS for path in sorted((ROOT / each).glob("*.json"))
             if path.with_suffix(".p4info.txtpb").exists()]  # fmt: skip
    programs = [(root, list(_places(root))) for root in roots]
    end = time.monotonic() + seconds
    with tempfile.TemporaryDirectory(prefix="fuzz-") as work:
        while time.monotonic() < end:
            root, places = source.choice(programs)
            text = json.dumps(damaged(root, places, source))
            start = time.monotonic()
            try:
                generate(read_program(text))
                outcome = "accepted"
            except SoftswitchError as error:
                outcome = type(error).__name__
            except Exception as error:  # Any exception other than softswitch's own is a finding.
                outcome = "escaped"
                _keep(tally, "json", text, f"{type(error).__name__}: {error}")
            if time.monotonic() - start > SLOW:
                _keep(tally, "json", text, f"took {time.monotonic() - start:.0f} s")
            tally.outcomes[outcome] += 1
            if outcome == "accepted" and compiler is not None and source.random() < 0.2:
                _run_accepted(text, compiler, Path(work), source, tally)
    return tally


def _run_accepted(text: str, compiler: str, work: Path, source: random.Random, tally: Tally) -> None:
    (work / "runtime").mkdir(exist_ok=True)
    try:
        binary = build(text.encode(), work / "program", libfuzzer=False, compiler=compiler, runtime=work / "runtime")
    except RuntimeError as error:
        _keep(tally, "json", text, f"accepted, but not C: {str(error)[-300:]}")
        return
    frames = work / "frames"
    data = b""
    for _ in range(FRAMES):
        frame = source.randbytes(source.randrange(120))
        data += bytes([0, source.randrange(4)]) + len(frame).to_bytes(2, "little") + frame
    frames.write_bytes(data)
    done = subprocess.run([str(binary), str(frames)], capture_output=True, text=True, errors="replace", check=False,
                          timeout=120)  # fmt: skip
    tally.outcomes["run with sanitizers"] += 1
    if done.returncode:
        _keep(tally, "json", text, f"accepted, but: {done.stderr[-300:]}")


def _keep(tally: Tally, suffix: str, data: str | bytes, what: str) -> None:
    tally.folder.mkdir(parents=True, exist_ok=True)
    path = tally.folder / f"hostile-{len(tally.findings)}.{suffix}"
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    tally.findings.append(f"{path}: {what}")


# ----------------------------------------------------------------------------------------------------------- P4Runtime


def random_message(kind: type[Message], source: random.Random, ids: list[int], depth: int = 6) -> Message:
    """Return a message of this type, each of whose fields is set or not; numbers are often ids that exist."""
    message: Any = kind()
    fields: Any = kind.DESCRIPTOR.fields
    for f in fields:
        if source.random() < 0.45:
            continue
        for _ in range(source.choice((1, 1, 2)) if f.is_repeated else 1):
            if f.message_type is not None:
                if f.message_type.GetOptions().map_entry or depth == 0:
                    continue
                value: Any = random_message(GetMessageClass(f.message_type), source, ids, depth - 1)
                if f.is_repeated:
                    getattr(message, f.name).append(value)
                else:
                    getattr(message, f.name).CopyFrom(value)
                continue
            if f.type == FieldDescriptor.TYPE_BYTES:
                value = source.choice((b"", b"\0", b"\1", b"\x01\xff", source.randbytes(source.randrange(12))))
            elif f.cpp_type == FieldDescriptor.CPPTYPE_STRING:
                value = source.choice(("", "x", "type.googleapis.com/p4.v1.Error"))
            elif f.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
                value = source.random() < 0.5
            elif f.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
                value = source.randrange(-1, 6)
            elif f.cpp_type in (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE):
                value = source.choice((0.0, -1.5, 1e300 if f.cpp_type == FieldDescriptor.CPPTYPE_DOUBLE else 1e30))
            else:
                bits = 31 if f.cpp_type in (FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_UINT32) else 62
                value = source.choice((0, 1, 2, source.choice(ids), source.getrandbits(bits)))
            if f.is_repeated:
                getattr(message, f.name).append(value)
            else:
                setattr(message, f.name, value)
    return message


def fuzz_p4runtime(seconds: float, source: random.Random, folder: Path) -> Tally:
    """Fuzz one served device after the other, each with another program."""
    tally = Tally(folder)
    programs = [path for each in OURS for path in sorted((ROOT / each).glob("*.json"))
                if path.with_suffix(".p4info.txtpb").exists()]  # fmt: skip
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        program = source.choice(programs)
        with tempfile.TemporaryDirectory(prefix="fuzz-") as work, Fabric() as fabric:
            server = P4RuntimeServer([fabric.add_device(1, 255)])
            address = server.listen(f"unix:{work}/grpc")
            server.start()
            try:
                info = program.with_suffix(".p4info.txtpb").read_text()
                controller = Controller(address, info, program.read_bytes())
                try:
                    _messages(address, controller, min(end, time.monotonic() + 5), source, tally)
                finally:
                    controller.close()
                # The device must still serve; random clients may have had any other election id.
                Controller(address, info, program.read_bytes(), election_id=HIGHEST).close()
                tally.outcomes["servers"] += 1
            except (grpc.RpcError, grpc.FutureTimeoutError) as error:
                tally.findings.append(f"{program.name}: no longer served: {error}")
            finally:
                server.stop(grace=0)
    return tally


def _messages(address: str, controller: Controller, end: float, source: random.Random, tally: Tally) -> None:
    info: Any = controller.info
    ids = [o.preamble.id for f in info.DESCRIPTOR.fields if f.is_repeated
           for o in getattr(info, f.name) if hasattr(o, "preamble")] or [1]  # fmt: skip
    with grpc.insecure_channel(address) as channel:
        while time.monotonic() < end:
            method = source.choice(("Write", "Write", "Read", *METHODS))
            data = _request(METHODS[method], source, ids)
            call: Any = (channel.unary_unary if method not in ("Read", "StreamChannel") else
                         channel.unary_stream if method == "Read" else channel.stream_stream)  # fmt: skip
            try:
                if method == "StreamChannel":
                    list(call(f"/p4.v1.P4Runtime/{method}")(iter([data]), timeout=PATIENCE))
                elif method == "Read":
                    list(call(f"/p4.v1.P4Runtime/{method}")(data, timeout=PATIENCE))
                else:
                    call(f"/p4.v1.P4Runtime/{method}")(data, timeout=PATIENCE)
                code, details = grpc.StatusCode.OK, ""
            except grpc.RpcError as error:
                code, details = error.code(), str(error.details())
            tally.outcomes[code.name] += 1
            # P4Runtime requires UNKNOWN for a batch, with the statuses of its members in the details.
            if code in FORBIDDEN and not (code == grpc.StatusCode.UNKNOWN and BATCH.match(details)):
                _keep(tally, f"{method}.bin", data, f"{code.name}: {details}")


def _request(kind: type[Message], source: random.Random, ids: list[int]) -> bytes:
    """Return bytes for a method: a random message that mostly passes the checks of device and election id."""
    message: Any = random_message(kind, source, ids)
    if "device_id" in kind.DESCRIPTOR.fields_by_name and source.random() < 0.9:
        message.device_id = 1
        for name in ("role", "role_id"):
            if name in kind.DESCRIPTOR.fields_by_name:
                message.ClearField(name)
        if "election_id" in kind.DESCRIPTOR.fields_by_name:
            message.election_id.Clear()
            message.election_id.low = 1
    data = bytearray(message.SerializeToString())
    if source.random() < 0.25:
        for _ in range(source.randrange(1, 5)):
            if data:
                data[source.randrange(len(data))] = source.randrange(256)
        del data[source.randrange(len(data) + 1) :]
        try:
            kind().MergeFromString(bytes(data))
        except (DecodeError, UnicodeDecodeError):
            pass  # Bytes that do not parse are fine: the server must refuse them too.
    return bytes(data)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.hostile", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="half for JSON, half for P4Runtime (60)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--compiler", default="cc", help="with sanitizers, for programs that are accepted (cc)")
    parser.add_argument("--output", type=Path, default=Path("results/fuzz"), help="where findings go (results/fuzz)")
    options = parser.parse_args()
    reason = missing_sanitizers(options.compiler)
    if reason:
        print(f"accepted programs are not run: {reason}", file=sys.stderr)
    source = random.Random(options.seed)
    compiler = None if reason else options.compiler
    failed = False
    for what, tally in (
        ("JSON", fuzz_json(options.seconds / 2, source, compiler, options.output)),
        ("P4Runtime", fuzz_p4runtime(options.seconds / 2, source, options.output)),
    ):
        print(f"{what}: {', '.join(f'{n} {outcome}' for outcome, n in tally.outcomes.most_common())}")
        for finding in tally.findings:
            print(f"  {finding}")
        failed = failed or bool(tally.findings)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
