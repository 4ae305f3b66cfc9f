"""Compiles a sample (a P4 program and its STF file), runs it on a target and judges the outcome."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import grpc
from google.protobuf import text_format

from softswitch import SoftswitchError, UnsupportedConstruct
from softswitch.p4runtime.stubs import p4info_pb2
from softswitch.tests.conformance import stf
from softswitch.tests.conformance.control import Controller, ExpectationFailed
from softswitch.tests.conformance.targets import TARGETS, Frames, Switch

COMPILER = "p4c-bm2-ss"
STANDARD = "p4-16"
PASS, FAIL, UNSUPPORTED = "pass", "fail", "unsupported"


@dataclass(frozen=True)
class Sample:
    name: str
    program: Path
    stf: Path


@dataclass(frozen=True)
class Result:
    """The result of one sample.

    ``outcome``: pass, fail (it runs, and something is not as expected) or unsupported (it does not load).
    """

    name: str
    outcome: str
    reason: str = ""
    seconds: float = 0.0


class NotCompiled(Exception):
    """p4c refuses the program, or the program is for another architecture."""


def find(folder: Path) -> list[Sample]:
    """Return the pairs NAME.p4 and NAME.stf of a folder, ordered by name."""
    pairs = ((path, path.with_suffix(".p4")) for path in sorted(folder.glob("*.stf")))
    return [Sample(path.stem, program, path) for path, program in pairs if program.exists()]


def compile_sample(sample: Sample, directory: Path, std: str = STANDARD) -> tuple[bytes, str]:
    """Return (bmv2 JSON, P4Info as text) of a sample's program, compiled for this version of P4.

    Raises ``NotCompiled``.
    """
    included = re.search(r'#include\s*[<"](?:.*/)?(psa|pna|dpdk/pna|ubpf_model|ebpf_model)\.p4[>"]',
                         sample.program.read_text(errors="replace"))  # fmt: skip
    if included:
        raise NotCompiled(f"a program of architecture {included[1]}, not v1model")
    if shutil.which(COMPILER) is None:
        raise NotCompiled(f"{COMPILER} is not on PATH")
    config, info = directory / "program.json", directory / "program.p4info.txtpb"
    command = [COMPILER, "--std", std, "--p4runtime-files", str(info), "-o", str(config), str(sample.program)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if "error" in line.lower()]
        first = errors[0].split("error:", 1)[-1].strip() if errors else f"status {done.returncode}"
        raise NotCompiled(f"{COMPILER}: {first}")
    return config.read_bytes(), without_removed(info.read_text(), config.read_bytes())


def without_removed(info: str, config: bytes) -> str:
    """Return the P4Info without the tables and action profiles that p4c describes in it although it has optimised them
    away: softswitch refuses a P4Info with something that the program does not have.
    """
    parsed = text_format.Parse(info, p4info_pb2.P4Info())
    pipelines = json.loads(config)["pipelines"]
    for kind in ("tables", "action_profiles"):
        present = {one["name"] for pipeline in pipelines for one in pipeline[kind]}
        described = getattr(parsed, kind)
        for absent in [one for one in described if one.preamble.name not in present]:
            described.remove(absent)
    return text_format.MessageToString(parsed)


def run_sample(sample: Sample, target: str, std: str = STANDARD) -> Result:
    """Compile and run a sample. Never raises for a defect of the sample or the switch: the result reports it."""
    start = time.monotonic()

    def result(outcome: str, reason: str = "") -> Result:
        return Result(sample.name, outcome, reason, round(time.monotonic() - start, 2))

    try:
        with tempfile.TemporaryDirectory(prefix="conformance-") as work:
            config, info = compile_sample(sample, Path(work), std)
        problems, note = run_compiled(sample.stf, config, info, target)
    except (NotCompiled, UnsupportedConstruct, stf.StfError) as error:
        return result(UNSUPPORTED, str(error))
    except SoftswitchError as error:
        return result(FAIL, f"{type(error).__name__}: {error}")
    except grpc.RpcError as error:
        unsupported = error.code() == grpc.StatusCode.UNIMPLEMENTED
        return result(UNSUPPORTED if unsupported else FAIL, f"P4Runtime {error.code().name}: {error.details()}")
    except (OSError, RuntimeError) as error:
        return result(FAIL, f"{type(error).__name__}: {error}")
    return result(FAIL, "; ".join(problems)) if problems else result(PASS, note)


def run_compiled(
    path: Path, config: bytes, info: str, target: str, *, every_port: bool = False
) -> tuple[list[str], str]:
    """Run an STF file against a compiled program and return (differences from what is expected, a note). As with p4c's
    own runner, a port that the file does not name is not connected, unless ``every_port``: then nothing may leave there
    either. A program that P4Runtime cannot describe is loaded without P4Runtime if the file needs no control plane; the
    note says so.
    """
    statements = stf.read(path)
    ports = sorted({s.port for s in statements if isinstance(s, stf.Packet | stf.Expect)})
    switch = TARGETS[target](config, ports)
    try:
        controller, note = _control(switch, info, config, statements)
        try:
            problems = _play(statements, switch, controller)
        finally:
            if controller is not None:
                controller.close()
        received = {port: frames for port, frames in switch.received().items() if every_port or port in ports}
        return problems + compare([s for s in statements if isinstance(s, stf.Expect)], received), note
    finally:
        switch.close()


def _control(
    switch: Switch, info: str, config: bytes, statements: list[stf.Statement]
) -> tuple[Controller | None, str]:
    try:
        return Controller(switch.address, info, config), ""
    except grpc.RpcError as error:
        needed = any(not isinstance(s, stf.Packet | stf.Expect | stf.Wait) for s in statements)
        if needed or error.code() != grpc.StatusCode.UNIMPLEMENTED or not switch.load(config):
            raise
        return None, f"without P4Runtime, which refuses it: {error.details()}"


def _play(statements: list[stf.Statement], switch: Switch, controller: Controller | None) -> list[str]:
    problems: list[str] = []
    switch.settle()
    sent = changed = False
    expected = 0
    for statement in statements:
        if isinstance(statement, stf.Expect):
            expected += 1
            continue
        if isinstance(statement, stf.Packet):
            if changed:
                switch.settle(expected)
            switch.send(statement.port, statement.frame)
            sent, changed = True, False
            continue
        if sent:
            switch.settle(expected)
        sent, changed = False, True
        if controller is None:
            continue
        try:
            if isinstance(statement, stf.Add):
                controller.add(statement)
            elif isinstance(statement, stf.SetDefault):
                controller.set_default(statement)
            elif isinstance(statement, stf.CheckCounter):
                controller.check_counter(statement)
            elif isinstance(statement, stf.Command):
                controller.command(statement)
        except ExpectationFailed as error:
            problems.append(str(error))
    switch.settle(expected)
    return problems


def compare(expected: list[stf.Expect], received: Frames) -> list[str]:
    """Return the differences between expected and received frames. On each port the same number of frames must leave in
    the same order; an expectation without a pattern allows any frames on its port.
    """
    problems: list[str] = []
    for port in sorted({e.port for e in expected} | set(received)):
        wanted = [e for e in expected if e.port == port]
        got = received.get(port, [])
        if any(not e.pattern and not e.exact for e in wanted):
            if not got:
                problems.append(f"port {port}: a frame expected, none sent")
            continue
        for i, (e, frame) in enumerate(zip(wanted, got, strict=False)):
            if not e.matches(frame):
                problems.append(f"port {port}, frame {i}: {frame.hex()} instead of {e.pattern}{'$' * e.exact}")
        if len(wanted) != len(got):
            problems.append(f"port {port}: {len(got)} frames instead of {len(wanted)}")
    return problems
