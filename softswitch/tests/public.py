"""``python -m softswitch.tests.public FOLDER``: try public programs, pairs of bmv2 JSON and P4Info that you bring.

It prints a line for each bmv2 JSON file below the folder: whether softswitch loads it, whether it accepts the P4Info
beside it, and, if simple_switch_grpc is on PATH, whether both switches answer random frames with the same frames.
Expect differences if a program uses time, random numbers or the queue. The status is 1 if a file is called malformed
or a P4Info is refused.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
from google.protobuf import text_format

from softswitch import BadProgram, Program, SoftswitchError
from softswitch.p4runtime import P4RuntimeError
from softswitch.p4runtime.schema import Schema
from softswitch.p4runtime.stubs import p4info_pb2
from softswitch.p4runtime.stubs import p4runtime_pb2 as p4rt
from softswitch.tests.conformance.targets import DEVICE_ID, TARGETS, Frames
from softswitch.tests.support.p4runtime import INSERT, Client, as_bytes, update

SUFFIXES = (".p4info.txtpb", ".p4info.txt", ".p4info", "_p4info.txt", ".proto.txt", ".p4rt")
"""The ends of the names of P4Info files; what precedes is the name of the JSON file, without .json."""
ALONE = ("p4info.txt", "p4info.txtpb")
"""The names of P4Info files that belong to the one JSON file in their folder."""
PORTS = range(1, 5)
ENTRIES = 4  # per table
FRAMES = 60


@dataclass(frozen=True)
class Row:
    """One line of the table; a field is empty where it does not apply."""

    path: str
    load: str
    p4info: str = ""
    traffic: str = ""

    @property
    def failed(self) -> bool:
        return self.load.startswith("malformed") or self.p4info.startswith("refused")


def programs(folder: Path) -> Iterator[tuple[Path, Path | None]]:
    """Yield each file with bmv2 JSON below a folder, and the P4Info beside it."""
    for path in sorted(folder.rglob("*.json")):
        try:
            if b'"header_types"' not in path.read_bytes():
                continue
        except OSError:
            continue
        yield path, p4info_of(path)


def p4info_of(path: Path) -> Path | None:
    """Return the P4Info file of a program, by its name."""
    beside = [path.with_name(path.stem + suffix) for suffix in SUFFIXES]
    if len(list(path.parent.glob("*.json"))) == 1:
        beside += [path.with_name(name) for name in ALONE]
    return next((file for file in beside if file.is_file()), None)


def examine(path: Path, info_path: Path | None, name: str, with_traffic: bool, seed: int) -> Row:
    """Load a program and its P4Info, and compare traffic if both are accepted."""
    config = path.read_bytes()
    try:
        program = Program.load(config)
    except BadProgram as error:
        return Row(name, str(error) if str(error).startswith("not JSON") else f"malformed: {error}")
    except SoftswitchError as error:
        return Row(name, f"not supported: {error}")
    if info_path is None:
        return Row(name, "yes", "none")
    try:
        info = text_format.Parse(info_path.read_text(), p4info_pb2.P4Info())
        Schema(info, program)
    except (text_format.ParseError, UnicodeDecodeError, P4RuntimeError) as error:
        return Row(name, "yes", f"refused: {error}")
    return Row(name, "yes", "yes", compare(config, info, seed) if with_traffic else "")


def compare(config: bytes, info: p4info_pb2.P4Info, seed: int) -> str:
    """Return how the frames of softswitch and bmv2 compare, with the same entries and the same frames received."""
    answers: dict[str, list[Frames]] = {}
    for target in TARGETS:
        try:
            answers[target] = traffic(target, config, info, random.Random(seed))
        except (grpc.RpcError, RuntimeError, OSError) as error:
            reason = error.details() if isinstance(error, grpc.RpcError) else error
            return f"{target} does not run it: {reason}"
    ours, theirs = answers["softswitch"], answers["bmv2"]
    different = sum(mine != yours for mine, yours in zip(ours, theirs, strict=True))
    sent = sum(len(frames) for answer in theirs for frames in answer.values())
    return f"same ({FRAMES} in, {sent} out)" if not different else f"{different} of {FRAMES} differ"


def traffic(target: str, config: bytes, info: p4info_pb2.P4Info, source: random.Random) -> list[Frames]:
    """Return the frames that leave a switch because of each of the random frames."""
    switch = TARGETS[target](config, PORTS)
    client = Client(switch.address, DEVICE_ID)
    try:
        client.ready()
        client.become_primary()
        client.set_pipeline(config, info)
        for entry in entries(info, source):
            client.outcomes(update(INSERT, table_entry=entry))  # Both switches refuse the same ones.
        switch.settle()
        answers = []
        for _ in range(FRAMES):
            before = {port: len(frames) for port, frames in switch.received().items()}
            switch.send(source.choice(PORTS), frame(source))
            switch.settle()
            found = {port: frames[before.get(port, 0) :] for port, frames in switch.received().items()}
            answers.append({port: frames for port, frames in found.items() if frames})
        return answers
    finally:
        client.close()
        switch.close()


def entries(info: p4info_pb2.P4Info, source: random.Random) -> Iterator[p4rt.TableEntry]:
    """Yield random entries of all tables whose entries have an action of their own."""
    actions = {action.preamble.id: action for action in info.actions}
    for table in info.tables:
        if table.is_const_table or table.implementation_id or not table.match_fields:
            continue
        called = [ref.id for ref in table.action_refs if ref.scope != p4info_pb2.ActionRef.DEFAULT_ONLY]
        for number in range(ENTRIES if called else 0):
            entry = p4rt.TableEntry(table_id=table.preamble.id)
            for field in table.match_fields:
                match(entry, field, source)
            if any(field.match_type in _PRIORITY for field in table.match_fields):
                entry.priority = number + 1
            action = actions[source.choice(called)]
            entry.action.action.action_id = action.preamble.id
            for param in action.params:
                entry.action.action.params.add(param_id=param.id, value=as_bytes(value(param.bitwidth, source)))
            yield entry


_KINDS = p4info_pb2.MatchField
_PRIORITY = (_KINDS.TERNARY, _KINDS.RANGE, _KINDS.OPTIONAL)


def match(entry: p4rt.TableEntry, field: p4info_pb2.MatchField, source: random.Random) -> None:
    """Add a random match of a field to an entry."""
    wanted, width = value(field.bitwidth, source), field.bitwidth
    if field.match_type == _KINDS.EXACT:
        entry.match.add(field_id=field.id).exact.value = as_bytes(wanted)
    elif source.random() < 0.6:
        return  # The entry matches any value of this field.
    elif field.match_type == _KINDS.LPM:
        length = source.randint(1, width)
        lpm = entry.match.add(field_id=field.id).lpm
        lpm.value, lpm.prefix_len = as_bytes(wanted >> width - length << width - length), length
    elif field.match_type == _KINDS.TERNARY:
        ternary = entry.match.add(field_id=field.id).ternary
        ternary.value, ternary.mask = as_bytes(wanted), as_bytes((1 << width) - 1)
    elif field.match_type == _KINDS.RANGE:
        bounds = entry.match.add(field_id=field.id).range
        bounds.low, bounds.high = as_bytes(wanted), as_bytes(source.randint(wanted, (1 << width) - 2))
    elif field.match_type == _KINDS.OPTIONAL:
        entry.match.add(field_id=field.id).optional.value = as_bytes(wanted)


def value(width: int, source: random.Random) -> int:
    """Return a random number of so many bits, often a small one, which is a port or what frames have."""
    most = (1 << width) - 2
    return max(0, min(most, source.choice((source.randint(0, 5), 0x800, source.getrandbits(max(1, width))))))


def frame(source: random.Random) -> bytes:
    """Return a random frame, often with IPv4, and UDP or TCP."""
    addresses = b"".join(as_bytes(source.choice((source.randint(0, 5), source.getrandbits(48)))).rjust(6, b"\0")
                         for _ in range(2))  # fmt: skip
    kind = source.choice((b"\x08\x00", b"\x08\x00", b"\x86\xdd", b"\x12\x12", source.randbytes(2)))
    payload = bytearray(source.randbytes(source.randint(20, 120)))
    if kind == b"\x08\x00":
        payload[0], payload[9] = 0x45, source.choice((6, 17, source.randrange(256)))
    return addresses + kind + bytes(payload)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m softswitch.tests.public",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", type=Path, help="where the pairs are")
    parser.add_argument("--seed", type=int, default=1, help="of random entries and frames (1)")
    options = parser.parse_args(arguments)
    found = list(programs(options.folder))
    if not found:
        print(f"no bmv2 JSON below {options.folder}; give the folder with the pairs", file=sys.stderr)
        return 2
    with_traffic = shutil.which("simple_switch_grpc") is not None
    if not with_traffic:
        print("simple_switch_grpc is not on PATH: traffic is not compared", file=sys.stderr)
    rows = []
    names = {path: str(path.relative_to(options.folder)) for path, _ in found}
    width = max(map(len, names.values()))
    print(f"{'program':{width}}  load  P4Info  traffic")
    for path, info in found:
        row = examine(path, info, names[path], with_traffic, options.seed)
        rows.append(row)
        print(f"{row.path:{width}}  {row.load:4}  {row.p4info:6}  {row.traffic}".rstrip(), flush=True)
    loaded = sum(row.load == "yes" for row in rows)
    accepted = sum(row.p4info == "yes" for row in rows)
    described = sum(row.p4info not in ("", "none") for row in rows)
    print(f"{loaded} of {len(rows)} programs load; {accepted} of {described} P4Infos are accepted")
    return 1 if any(row.failed for row in rows) else 0


if __name__ == "__main__":
    raise SystemExit(main())
