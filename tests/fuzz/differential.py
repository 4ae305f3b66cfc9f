"""``python -m tests.fuzz.differential``: random entries and random frames on softswitch and on bmv2; any difference is
shrunk to a minimal case and written as an STF file that pytest replays without bmv2.

Without ``--program`` and ``--samples``: the programs of this repository. A round is one program with one random
configuration on a fresh switch of each kind. Frames are compared per port, in no order.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

import grpc
from google.protobuf import text_format

from softswitch import SoftswitchError
from softswitch.bmv2json.reader import read_program
from softswitch.p4runtime.stubs import p4info_pb2
from softswitch.tests.conformance import stf
from softswitch.tests.conformance.control import Controller
from softswitch.tests.conformance.samples import NotCompiled, Sample, compile_sample
from softswitch.tests.conformance.stf import Add, Command, SetDefault, Statement
from softswitch.tests.conformance.targets import Bmv2, Frames, Softswitch
from softswitch.tests.support.switches import missing
from tests.fuzz import undefined
from tests.fuzz.case import Artifacts, Case, multiset, write
from tests.fuzz.entries import EntrySource, constants
from tests.fuzz.packets import Frame, PacketSource
from tests.fuzz.wellformed import repair

ROOT = Path(__file__).resolve().parents[2]
# Programs of ours that answer differently on bmv2: where bmv2 departs from P4, and how full its queues are.
DIFFERENT = ("departures", "queueing")
OURS = ("softswitch/tests/conformance/programs", "softswitch/tests/dataplane/p4", "p4src/artifacts/v1model-4")
IN_FLIGHT = 32  # Frames given to bmv2 before its answers are awaited: its port queues hold 64.
PATIENCE = 3.0  # Seconds that bmv2 may need for the answers that softswitch gave.
QUIET = 0.06  # Seconds without output after which bmv2 is taken to have processed everything.
SETTLE = 0.15  # Seconds that bmv2 may need until a program that it has acknowledged takes effect.
GRACE = 0.003  # Seconds to wait for a surplus frame when frames are given one at a time.
SHRINK_RUNS = 60
Item = TypeVar("Item")


class Unusable(Exception):
    """The case cannot be compared: a switch refuses its configuration, or bmv2 crashes on it."""


# ------------------------------------------------------------------------------------------------------------- running


class _Bmv2(Bmv2):
    """A bmv2 switch whose answers are awaited no longer than needed."""

    def drain(self, expected: int, patience: float = PATIENCE) -> None:
        """Wait until ``expected`` frames have left or ``patience`` seconds have passed."""
        end = time.monotonic() + patience
        while sum(map(len, self._frames.values())) < expected and time.monotonic() < end:
            if self._switch.status() is not None:
                return
            time.sleep(0.001)

    def finish(self) -> Frames:
        while time.monotonic() - self._last < QUIET and self._switch.status() is None:
            time.sleep(QUIET / 10)
        status = self._switch.status()
        if status is not None:
            raise Unusable(f"bmv2 ended with status {status}")
        return {port: list(frames) for port, frames in self._frames.items()}


def configure(controller: Controller, statements: Sequence[Statement]) -> list[Statement]:
    """Carry out the statements and return those that the switch accepted."""
    accepted: list[Statement] = []
    for statement in statements:
        try:
            if isinstance(statement, Add):
                controller.add(statement)
            elif isinstance(statement, SetDefault):
                controller.set_default(statement)
            elif isinstance(statement, Command):
                controller.command(statement)
        except (grpc.RpcError, LookupError):  # a group or node may have been left out
            continue
        accepted.append(statement)
    return accepted


def _controller(switch: Bmv2 | Softswitch, case: Case) -> Controller:
    try:
        return Controller(switch.address, case.artifacts.info, case.artifacts.config)
    except grpc.RpcError as error:
        raise Unusable(f"{type(switch).__name__.strip('_')} refuses the program: {error.details()}") from None


@dataclass
class Answers:
    """The answers of a switch to a case: all frames that left, the frames that left because of each frame, and the
    accepted statements.
    """

    frames: Frames
    each: list[list[Frame]] = field(default_factory=list)
    accepted: list[Statement] = field(default_factory=list)
    unfit: list[int] = field(default_factory=list)  # frames that recirculate for ever or do something undefined
    rejected: list[int] = field(default_factory=list)  # frames that led to a parser error


def on_softswitch(case: Case, counting: bool = True) -> Answers:
    """Run a case on softswitch. ``counting``: also find out which frames are unfit or rejected; only possible under
    :func:`undefined.counted`.
    """
    switch = Softswitch(case.artifacts.config, ())
    try:
        controller = _controller(switch, case)
        try:
            answers = Answers({}, accepted=configure(controller, case.statements))
        finally:
            controller.close()
        device = switch.device
        assert device.program is not None
        program = device.program

        def counts() -> tuple[int, int]:
            if not counting:
                return 0, 0
            passes = device.drop_stats()["too_many_passes"]
            return passes + undefined.count(program), undefined.parser_errors(program)

        before = counts()
        for i, (port, frame) in enumerate(case.frames):
            out = device.process(port, frame)
            answers.each.append(out)
            for to, data in out:
                answers.frames.setdefault(to, []).append(data)
            after = counts()
            if after[0] != before[0]:
                answers.unfit.append(i)
            if after[1] != before[1]:
                answers.rejected.append(i)
            before = after
        return answers
    finally:
        switch.close()


def on_bmv2(case: Case, expected: Sequence[int]) -> Answers:
    """Run a case on bmv2. ``expected``: the number of frames that should leave because of each frame."""
    switch = _Bmv2(case.artifacts.config, ())
    try:
        controller = _controller(switch, case)
        try:
            answers = Answers({}, accepted=configure(controller, case.statements))
            time.sleep(SETTLE)
            total = flying = 0
            for (port, frame), count in zip(case.frames, expected, strict=True):
                if flying and flying + 1 + count > IN_FLIGHT:
                    switch.drain(total)
                    flying = 0
                switch.send(port, frame)
                total, flying = total + count, flying + 1 + count
            switch.drain(total)
            answers.frames = switch.finish()
        finally:
            controller.close()
        return answers
    except RuntimeError as error:
        raise Unusable(str(error)) from None
    finally:
        switch.close()


def first_difference(case: Case) -> int | None:
    """Return the first frame that bmv2, given one frame at a time, does not answer as softswitch does."""
    ours = on_softswitch(case)
    switch = _Bmv2(case.artifacts.config, ())
    try:
        controller = _controller(switch, case)
        try:
            configure(controller, case.statements)
            time.sleep(SETTLE)
            seen: Frames = {}
            for i, (port, frame) in enumerate(case.frames):
                switch.send(port, frame)
                for to, data in ours.each[i]:
                    seen.setdefault(to, []).append(data)
                switch.drain(sum(map(len, seen.values())), QUIET)
                time.sleep(GRACE)
                if multiset(switch.received()) != multiset(seen):
                    return i
        finally:
            controller.close()
        return None
    except RuntimeError as error:
        raise Unusable(str(error)) from None
    finally:
        switch.close()


@dataclass(frozen=True)
class Comparison:
    """The comparison of two switches on one case.

    ``what``: one line that says what differs; empty when nothing does.
    """

    what: str
    bmv2: Frames
    suspect: int | None = None  # a frame to which softswitch gave an answer that bmv2 did not give


def compare(case: Case) -> Comparison:
    """Run a case on both switches. Raises ``Unusable``."""
    ours = on_softswitch(case)
    if ours.unfit:
        raise Unusable("a frame goes round without end or does something undefined: bmv2 would hang or crash")
    theirs = on_bmv2(case, [len(out) for out in ours.each])
    if ours.accepted != theirs.accepted:
        odd = next(s for s in case.statements if (s in ours.accepted) != (s in theirs.accepted))
        who = "bmv2" if odd in ours.accepted else "softswitch"
        return Comparison(f"only {who} refuses {odd}", theirs.frames)
    mine, other = multiset(ours.frames), multiset(theirs.frames)
    if mine == other:
        return Comparison("", theirs.frames)
    for port in sorted({*mine, *other}):
        if mine.get(port) != other.get(port):
            a, b = Counter(mine.get(port, ())), Counter(other.get(port, ()))
            only_ours, only_theirs = list((a - b).elements()), list((b - a).elements())
            suspects = (i for i, out in enumerate(ours.each) if any((port, frame) in out for frame in only_ours))
            what = f"port {port}: softswitch {_some(only_ours)}, bmv2 {_some(only_theirs)}"
            return Comparison(what, theirs.frames, next(suspects, None))
    raise AssertionError("unequal, yet equal on every port")


def _some(frames: Sequence[bytes]) -> str:
    if not frames:
        return "nothing more"
    more = f" and {len(frames) - 1} more" if len(frames) > 1 else ""
    return frames[0].hex() + more


# ----------------------------------------------------------------------------------------------------------- shrinking


class Shrinker:
    """Makes a case smaller as long as ``differs`` holds, with at most ``runs`` calls of it."""

    def __init__(self, differs: Callable[[Case], bool], runs: int = SHRINK_RUNS) -> None:
        self._differs = differs
        self.runs = runs

    def _still(self, case: Case) -> bool:
        if self.runs <= 0:
            return False
        self.runs -= 1
        return self._differs(case)

    def shrink(self, case: Case) -> Case:
        case = case.with_frames(self._subset(case.frames, lambda frames: self._still(case.with_frames(frames))))
        case = case.with_statements(
            self._subset(case.statements, lambda statements: self._still(case.with_statements(statements)))
        )
        for i in range(len(case.frames)):
            case = self._smaller_frame(case, i)
        return case

    def _subset(self, items: Sequence[Item], differs: Callable[[Sequence[Item]], bool]) -> list[Item]:
        """Return a small subset, in order, that still differs, by leaving out halves, then quarters and so on (Zeller's
        ddmin).
        """
        kept = list(items)
        chunk = max(1, len(kept) // 2)
        while kept:
            removed = False
            for start in range(len(kept) - len(kept) % chunk, -1, -chunk):
                rest = kept[:start] + kept[start + chunk :]
                if len(rest) < len(kept) and differs(rest):
                    kept, removed = rest, True
            if chunk > 1:
                chunk = max(1, min(chunk // 2, len(kept)))
            elif not removed:
                break
        return kept

    def _smaller_frame(self, case: Case, i: int) -> Case:
        def having(data: bytes) -> Case:
            frames = list(case.frames)
            frames[i] = (frames[i][0], data)
            return case.with_frames(frames)

        cut = len(case.frames[i][1]) // 2
        while cut:  # A frame is never shrunk to nothing, because bmv2 ignores empty frames.
            shorter = having(case.frames[i][1][:-cut])
            if self._still(shorter):
                case = shorter
            cut //= 2
        size = max(1, len(case.frames[i][1]) // 2)
        while size:
            for at in range(0, len(case.frames[i][1]), size):
                data = case.frames[i][1]
                zeroed = data[:at] + bytes(len(data[at : at + size])) + data[at + size :]
                if zeroed != data and self._still(having(zeroed)):
                    case = having(zeroed)
            size //= 2
        return case


def has_state(config: bytes) -> bool:
    """Return whether a program keeps state between frames that could change the answers to later frames."""
    root = json.loads(config)
    return bool(root.get("register_arrays") or root.get("meter_arrays"))


def _reproduces(case: Case) -> bool:
    try:
        return bool(compare(case).what)
    except (Unusable, SoftswitchError):
        return False


# ------------------------------------------------------------------------------------------------------------ programs


def load(path: Path) -> tuple[Artifacts, list[bytes]]:
    """Load a program given as .json (with .p4info.txtpb beside it) or .p4, and the frames of an STF file beside it."""
    seeds: list[bytes] = []
    beside = path.with_suffix(".stf")
    if beside.exists():
        try:
            seeds = [s.frame for s in stf.read(beside) if isinstance(s, stf.Packet)]
        except stf.StfError:
            seeds = []
    if path.suffix == ".json":
        name = str(path.resolve().relative_to(ROOT)) if path.resolve().is_relative_to(ROOT) else path.name
        return Artifacts(name, path.read_bytes(), path.with_suffix(".p4info.txtpb").read_text()), seeds
    with tempfile.TemporaryDirectory(prefix="fuzz-") as work:
        config, info = compile_sample(Sample(path.stem, path, beside), Path(work))
    return Artifacts(path.name, config, info), seeds


def programs(options: argparse.Namespace) -> list[Path]:
    """Return the paths of the programs that the options ask for."""
    found = list(options.program)
    if options.samples is not None:
        found += sorted(p for p in options.samples.glob(f"{options.only}.p4") if p.with_suffix(".stf").exists())
    return found or our_programs(options.only)


def our_programs(only: str = "*") -> list[Path]:
    """Return the programs of this repository whose answers do not depend on time."""
    return [path for folder in OURS for path in sorted((ROOT / folder).glob(f"{only}.json"))
            if path.with_suffix(".p4info.txtpb").exists() and path.stem not in DIFFERENT]  # fmt: skip


# --------------------------------------------------------------------------------------------------------------- rounds


@dataclass
class Tally:
    """The counts of one program's rounds."""

    rounds: int = 0
    frames: int = 0
    answers: int = 0
    statements: int = 0
    left_out: int = 0  # frames that recirculate for ever or do something undefined
    differences: list[str] = field(default_factory=list)
    leftovers: int = 0  # differences of stateless programs where bmv2's answer depends on earlier frames
    unsteady: int = 0  # cases in which bmv2 differs from itself, for example in times
    not_reproduced: int = 0
    unusable: Counter[str] = field(default_factory=Counter)


class Program:
    """One program under test."""

    def __init__(self, path: Path, seed: int) -> None:
        self.artifacts, self.seeds = load(path)
        self.p4 = read_program(self.artifacts.config)
        self.info = text_format.Parse(self.artifacts.info, p4info_pb2.P4Info())
        self.pool = constants(json.loads(self.artifacts.config))
        self.seed = seed
        self.tally = Tally()

    def case(self, number: int, frames: int) -> Case:
        """Return the case of round ``number``. Every third case has frames that the parser rejects, except for programs
        with registers: bmv2 then reads what earlier frames left in headers that this frame does not have.
        """
        rejected_too = number % 3 == 2 and not has_state(self.artifacts.config)
        source = random.Random(f"{self.artifacts.path}/{self.seed}/{number}")
        pool = [*self.pool, *(source.getrandbits(source.choice((4, 8, 16, 32))) for _ in range(6))]
        statements = EntrySource(self.info, pool, source).statements()
        packets = PacketSource(self.p4, [*pool, *_numbers(statements)], source, self.seeds)
        path = self.artifacts.path
        made = (repair(path, packets.frame(), source, packets.ports, statements) for _ in range(frames))
        case = Case(self.artifacts, tuple(statements), tuple(made))
        for _ in range(4):  # When some frames are removed, others may become unfit.
            answers = on_softswitch(case)
            unfit = {*answers.unfit, *(() if rejected_too else answers.rejected)}
            if not unfit:
                return case
            self.tally.left_out += len(unfit)
            case = case.with_frames(f for i, f in enumerate(case.frames) if i not in unfit)
        raise Unusable("too many frames go round without end or do something undefined")

    def round(self, number: int, frames: int, folder: Path) -> float:
        """Run one round and return the seconds that shrinking took."""
        tally = self.tally
        tally.rounds += 1
        try:
            case = self.case(number, frames)
            tally.frames += len(case.frames)
            tally.statements += len(case.statements)
            found = compare(case)
            tally.answers += sum(map(len, found.bmv2.values()))
            if found.what:
                start = time.monotonic()
                self._difference(case, found, number, folder)
                return time.monotonic() - start
        except Unusable as error:
            tally.unusable[str(error)] += 1
        except SoftswitchError as error:
            tally.unusable[f"softswitch: {error}"] += 1
        return 0.0

    def _difference(self, case: Case, found: Comparison, number: int, folder: Path) -> None:
        print(f"{self.artifacts.path}, round {number}: shrinking: {found.what}", file=sys.stderr, flush=True)
        try:
            suspect = first_difference(case) if found.suspect is None else found.suspect
        except Unusable:
            suspect = None
        if suspect is not None:
            alone = case.with_frames(case.frames[suspect : suspect + 1])
            if _reproduces(alone):
                case = alone
            elif not has_state(self.artifacts.config):
                # softswitch keeps no state either, so bmv2's answer depends on state of its own.
                self.tally.leftovers += 1
                return
            else:
                case = case.with_frames(case.frames[: suspect + 1])
        if not _reproduces(case):
            self.tally.not_reproduced += 1
            return
        small = Shrinker(_reproduces).shrink(case)
        try:
            found = compare(small)
        except Unusable:
            found = Comparison("", {})
        if not found.what:
            self.tally.not_reproduced += 1
            return
        alone = small.with_frames(small.frames[-1:])
        if len(small.frames) > 1 and not has_state(self.artifacts.config) and not _reproduces(alone):
            self.tally.leftovers += 1
            return
        if multiset(on_bmv2(small, [len(out) for out in on_softswitch(small).each]).frames) != multiset(found.bmv2):
            self.tally.unsteady += 1
            return
        name = f"{Path(self.artifacts.path).stem}-{self.seed}-{number}"
        write(folder / f"{name}.stf", small, found.bmv2, [found.what])
        # The program is not in this repository: write what is needed to run it again.
        if "/" not in self.artifacts.path:
            write(folder / f"{name}.stf", replace_path(small, f"{name}.json"), found.bmv2, [found.what])
            (folder / f"{name}.json").write_bytes(self.artifacts.config)
            (folder / f"{name}.p4info.txtpb").write_text(self.artifacts.info)
        self.tally.differences.append(f"{name}: {found.what}")


def replace_path(case: Case, path: str) -> Case:
    return replace(case, artifacts=replace(case.artifacts, path=path))


def _numbers(statements: Sequence[Statement]) -> Iterator[int]:
    """Yield the values of the entries' keys, several times each, so that frames match them."""
    for statement in statements:
        if isinstance(statement, Add):
            for _, text in statement.keys:
                value = int(text.split("&")[0].split("/")[0].split("..")[0], 0)
                yield from (value, value, value)


def summary(fuzzed: Sequence[Program]) -> dict[str, object]:
    """Return the figures of a run, for people and for machines."""
    tallies = [p.tally for p in fuzzed]
    unusable: Counter[str] = Counter()
    for tally in tallies:
        unusable.update(tally.unusable)
    return {
        "programs": len(fuzzed),
        "rounds": sum(t.rounds for t in tallies),
        "frames": sum(t.frames for t in tallies),
        "answers": sum(t.answers for t in tallies),
        "statements": sum(t.statements for t in tallies),
        "frames_left_out": sum(t.left_out for t in tallies),
        "differences": [d for t in tallies for d in t.differences],
        "bmv2_leftovers": sum(t.leftovers for t in tallies),
        "bmv2_unsteady": sum(t.unsteady for t in tallies),
        "not_reproduced": sum(t.not_reproduced for t in tallies),
        "rounds_not_compared": dict(unusable),
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.differential", description=__doc__)
    parser.add_argument("--program", type=Path, action="append", default=[], metavar="FILE",
                        help="NAME.json with NAME.p4info.txtpb beside it, or NAME.p4; repeatable")  # fmt: skip
    parser.add_argument("--samples", type=Path, metavar="FOLDER", help="all pairs NAME.p4, NAME.stf of a folder")
    parser.add_argument("--only", default="*", metavar="PATTERN", help="names in folders, with * and ?")
    parser.add_argument("--packets", type=int, default=300, help="frames per round (300)")
    parser.add_argument("--rounds", type=int, default=1 << 30, help="rounds per program (no limit)")
    parser.add_argument("--seconds", type=float, default=60.0, help="length of the run, without shrinking (60)")
    parser.add_argument("--seed", type=int, default=1, help="of everything that is random (1)")
    parser.add_argument("--output", type=Path, default=Path("results/fuzz"), help="where cases go (results/fuzz)")
    parser.add_argument("--json", action="store_true", help="the summary as JSON")
    options = parser.parse_args()
    for target in ("bmv2", "softswitch"):
        reason = missing(target)
        if reason:
            print(reason, file=sys.stderr)
            return 2
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    fuzzed: list[Program] = []
    for path in programs(options):
        try:
            fuzzed.append(Program(path, options.seed))
        except (NotCompiled, SoftswitchError, OSError) as error:
            print(f"{path.name}: not run: {error}", file=sys.stderr)
    if not fuzzed:
        print("no programs", file=sys.stderr)
        return 2
    end = time.monotonic() + options.seconds
    with undefined.counted():
        _rounds(fuzzed, options, end)
    result = summary(fuzzed)
    if options.json:
        print(json.dumps(result, indent=1))
    else:
        for key, value in result.items():
            print(f"{key:20} {len(value) if isinstance(value, list) else value}")
    return 1 if result["differences"] else 0


def _rounds(fuzzed: Sequence[Program], options: argparse.Namespace, end: float) -> None:
    for number in range(options.rounds):
        if time.monotonic() > end:
            break
        for program in fuzzed:
            known = len(program.tally.differences)
            if known >= 3 or time.monotonic() > end:
                continue  # There are enough findings for this program.
            end += program.round(number, options.packets, options.output)
            for difference in program.tally.differences[known:]:
                print(difference, file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
