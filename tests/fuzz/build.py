"""Builds the fuzzing harness of one program with sanitizers and makes initial inputs for it."""

from __future__ import annotations

import functools
import json
import random
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from google.protobuf import text_format

from softswitch.bmv2json.reader import read_program
from softswitch.compiler.build import RUNTIME
from softswitch.compiler.codegen import Generated, generate
from softswitch.compiler.layout import storage_bits
from softswitch.p4runtime.stubs import p4info_pb2
from tests.fuzz.case import Artifacts
from tests.fuzz.entries import constants
from tests.fuzz.packets import PacketSource
from tests.fuzz.wellformed import repair

HARNESS = Path(__file__).with_name("harness.c")
SANITIZERS = "address,undefined"
WARNINGS = ("-std=gnu11", "-g", "-march=native", "-fno-strict-aliasing", "-fno-omit-frame-pointer",
            "-fno-sanitize-recover=undefined", "-pthread", "-w")  # fmt: skip
CHOICES = 4  # Number of choices of each action profile that table entries can have; it must be a power of two.
COVERED = ("tables.c", "bitmaps.c", "switch.c", "offload.c", "buffer.c", "profiles.c", "meters.c", "value_sets.c")
"""The files of the runtime that inputs can reach; the others are threads, sockets and timers."""


@functools.cache
def missing_libfuzzer() -> str | None:
    """Return why coverage-guided fuzzing cannot run here, or None when it can."""
    clang = shutil.which("clang")
    if clang is None:
        return "clang is not on PATH (Debian: apt-get install clang libclang-rt-14-dev)"
    with tempfile.TemporaryDirectory() as work:
        source = Path(work) / "t.c"
        source.write_text("int LLVMFuzzerTestOneInput(const char *d, unsigned long n) { return 0; }\n")
        command = [clang, f"-fsanitize=fuzzer,{SANITIZERS}", "-o", str(Path(work) / "t"), str(source)]
        if subprocess.run(command, capture_output=True, check=False, timeout=120).returncode:
            return "clang has no libFuzzer and sanitizer runtime (Debian: apt-get install libclang-rt-14-dev)"
    return None


@functools.cache
def missing_sanitizers(compiler: str) -> str | None:
    """Return why ``compiler`` cannot build with sanitizers, or None when it can."""
    if shutil.which(compiler) is None:
        return f"{compiler} is not on PATH"
    with tempfile.TemporaryDirectory() as work:
        source = Path(work) / "t.c"
        source.write_text("int main(void) { return 0; }\n")
        command = [compiler, f"-fsanitize={SANITIZERS}", "-o", str(Path(work) / "t"), str(source)]
        if subprocess.run(command, capture_output=True, check=False, timeout=120).returncode:
            return f"{compiler} has no sanitizer runtime"
    return None


def _actions(name: str, n: int, code: Generated, action_ids: Sequence[int], size: int) -> tuple[list[str], str]:
    """Return C that defines the bits that each action's parameters may have, and the name of the array of them."""
    actions = _parameter_bits(code, action_ids, size)
    lines = [f"static const uint8_t {name}_params_{n}_{i}[] = {{{', '.join(map(str, data))}}};"
             for i, data in enumerate(actions)]  # fmt: skip
    names = ", ".join(f"{name}_params_{n}_{i}" for i in range(len(actions)))
    lines.append(f"static const uint8_t *const {name}_actions_{n}[] = {{{names}}};")
    return lines, f"{name}_actions_{n}"


def _parameter_bits(code: Generated, action_ids: Sequence[int], size: int) -> list[bytes]:
    """Return, for each action, the bits that its ``size`` bytes of parameters may have in the native code's layout."""
    found: list[bytes] = []
    for action_id in action_ids:
        data = bytearray(max(size, 1))
        for at, width in code.params[action_id][0]:
            bits, full = storage_bits(width), (1 << width) - 1
            count = bits // 8 if bits else (width + 7) // 8
            data[at : at + count] = full.to_bytes(count, "little" if bits else "big")
        found.append(bytes(data))
    return found


def _tables_header(code: Generated) -> str:
    """Return the text of fuzz_tables.h. It has the bits that a key may have, per table, and the bits that parameters
    may have, per action of the table; and the same for the actions of each action profile. An entry of a table with a
    profile has the number of a choice.
    """
    lines = ["#include <stdint.h>",
             "struct fuzz_table { uint32_t n_actions, params_bytes; const uint64_t *key; "
             "const uint8_t *const *actions; };",
             f"enum {{ FUZZ_CHOICES = {CHOICES} }};",
             f"static const uint8_t fuzz_choice[] = {{{CHOICES - 1}, 0, 0, 0}};",
             "static const uint8_t *const fuzz_choices[] = {fuzz_choice};"]  # fmt: skip
    rows: list[str] = []
    words = ranges = params = 1
    for plan in code.tables.values():
        n = plan.index
        key = bytearray(8 * plan.key_words)
        for static, (at, size) in zip(plan.table.keys, plan.key_places, strict=True):
            full = (1 << static.width) - 1 if static.mask is None else static.mask
            key[at : at + size] = full.to_bytes(size, "big")
        values = [int.from_bytes(key[i : i + 8], "little") for i in range(0, len(key), 8)]
        lines.append(f"static const uint64_t fuzz_key_{n}[] = {{{', '.join(f'{v:#x}u' for v in values) or '0'}}};")
        actions, count = "fuzz_choices", 1
        if plan.table.profile is None:
            more, actions = _actions("fuzz", n, code, plan.action_ids, plan.params_bytes)
            lines, count = lines + more, len(plan.action_ids)
        rows.append(f"{{{count}, {plan.params_bytes}, fuzz_key_{n}, {actions}}}")
        words = max(words, plan.key_words)
        ranges = max(ranges, sum(2 * plan.key_places[i][1] for i in plan.ranges))
        params = max(params, plan.params_bytes)
    profiles: list[str] = []
    for profile in code.profiles.values():
        ids = [profile.action_ids[name] for name in sorted(profile.numbers, key=profile.numbers.__getitem__)]
        more, actions = _actions("fuzz_profile", profile.index, code, ids, profile.params_bytes)
        lines += more
        profiles.append(f"{{{len(ids)}, {profile.params_bytes}, 0, {actions}}}")
        params = max(params, profile.params_bytes)
    lines += [f"#define FUZZ_KEY_WORDS {words}", f"#define FUZZ_RANGE_BYTES {ranges}",
              f"#define FUZZ_PARAM_BYTES {params}",
              f"static const struct fuzz_table fuzz_tables[] = {{{', '.join(rows) or '{0}'}}};",
              f"static const struct fuzz_table fuzz_profiles[] = {{{', '.join(profiles) or '{0}'}}};"]  # fmt: skip
    return "\n".join(lines) + "\n"


def build(
    config: bytes, directory: Path, *, libfuzzer: bool, compiler: str = "clang", runtime: Path | None = None
) -> Path:
    """Compile the harness, the runtime and a program's generated code. Raises ``SoftswitchError`` for a program that
    does not load.

    ``runtime``: a folder where the runtime's objects are kept from one program to the next.
    """
    code = generate(read_program(config))
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "fuzz_tables.h").write_text(_tables_header(code))
    (directory / "program.c").write_text(code.source)
    # What runs a few inputs only is compiled in little time, and what runs millions to quicker code.
    common = [compiler, *WARNINGS, "-O1" if libfuzzer else "-O0", "-I", str(RUNTIME), "-I", str(directory)]
    plain = [f"-fsanitize={SANITIZERS}"]
    covered = [f"-fsanitize=fuzzer-no-link,{SANITIZERS}"] if libfuzzer else plain
    objects: list[str] = []
    for source in [directory / "program.c", *sorted(RUNTIME.glob("*.c")), HARNESS]:
        flags = covered if source.name in ("program.c", *COVERED) else plain
        target = (runtime if runtime is not None and source.parent == RUNTIME else directory) / f"{source.stem}.o"
        extra = [] if libfuzzer else ["-DFUZZ_STANDALONE"]
        if target.parent == directory or not target.exists():
            _run([*common, *flags, *extra, "-c", "-o", str(target), str(source)])
        objects.append(str(target))
    binary = directory / "fuzz"
    link = [f"-fsanitize=fuzzer,{SANITIZERS}"] if libfuzzer else plain
    _run([compiler, *link, "-pthread", "-o", str(binary), *objects])
    return binary


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}:\n{done.stderr[-4000:]}")


def inputs(artifacts: Artifacts, known: Sequence[bytes], count: int, seed: int) -> list[bytes]:
    """Return initial inputs: table entries, groups, and frames that walk the program's parser."""
    source = random.Random(seed)
    config = artifacts.config
    program = read_program(config)
    code = generate(program)
    info = text_format.Parse(artifacts.info, p4info_pb2.P4Info())
    pool = constants(json.loads(config))
    packets = PacketSource(program, pool, source, known)
    out: list[bytes] = []
    for _ in range(count):
        ops = bytearray()
        for _ in range(source.randrange(4) if info.tables else 0):
            plan = source.choice(list(code.tables.values()))
            ops += bytes([8, plan.index, source.randrange(256), source.randrange(256), source.randrange(3)])
            ops += source.randbytes(8 * plan.key_words + plan.params_bytes)
        if info.tables and source.random() < 0.1:  # Many masks make the tables keep bitmaps.
            plan = source.choice(list(code.tables.values()))
            size = 16 * plan.key_words + sum(2 * plan.key_places[i][1] for i in plan.ranges) + plan.params_bytes
            for _ in range(source.randrange(17, 40)):
                ops += bytes([8, plan.index, source.randrange(256), source.randrange(256), 2])
                ops += source.randbytes(size)
        if source.random() < 0.3:
            ops += bytes([11, source.randrange(8), *source.randbytes(6), source.randrange(16)])
        for _ in range(source.randrange(1, 4)):
            port, frame = repair(artifacts.path, packets.frame(), source, packets.ports)
            ops += bytes([0, port]) + len(frame).to_bytes(2, "little") + frame
        for op in (15, 16, 17, 18, 19):
            if source.random() < 0.2:
                ops += bytes([op]) + source.randbytes(24)
        if source.random() < 0.1:
            ops += bytes([13]) + source.randbytes(10) + b"\x40\x00" + source.randbytes(64)
        out.append(bytes(ops))
    return out
