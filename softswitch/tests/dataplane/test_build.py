"""The C code compiles without warnings and only once, and a compiler that fails is reported."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from softswitch import CompilerFailed, Program
from softswitch.bmv2json.reader import read_program
from softswitch.compiler import build
from softswitch.compiler.codegen import generate
from softswitch.tests.dataplane.programs import NAMES, json_path
from softswitch.tests.support.switches import run


@pytest.mark.parametrize("path", sorted(build.RUNTIME.glob("*.c")), ids=lambda p: p.name)
def test_the_runtime_compiles_without_warnings(path: Path) -> None:
    run(build.compiler()[0], "-std=gnu11", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-Wshadow", str(path))


@pytest.mark.parametrize("name", NAMES)
def test_generated_code_is_the_same_every_time(name: str) -> None:
    text = json_path(name).read_bytes()
    assert generate(read_program(text)).source == generate(read_program(text)).source


def test_values_become_loops() -> None:
    """The 32 values of the test program become loops and are not written out one by one, so that it compiles fast."""
    source = generate(read_program(json_path("sums").read_bytes())).source
    assert source.count("i < 32; i++") >= 5
    assert source.count("ss_load32(") < 40


def test_a_program_is_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    text = json_path("matching").read_bytes()
    first = Program.load(text)
    files = {p: p.stat().st_mtime_ns for p in build.cache_dir().iterdir()}
    assert Program.load(text).digest == first.digest
    assert {p: p.stat().st_mtime_ns for p in build.cache_dir().iterdir()} == files
    changed = json.loads(text)
    changed["register_arrays"].append({"name": "more", "id": 99, "size": 4, "bitwidth": 8})
    assert Program.load(json.dumps(changed)).digest != first.digest


def test_a_cache_that_cannot_be_written_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(CompilerFailed, match="cannot write to "):
        Program.load(json_path("matching").read_bytes())


def test_a_compiler_that_fails_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    broken = tmp_path / "cc"
    broken.write_text("#!/bin/sh\ncase $1 in --version) echo broken;; *) echo no space >&2; exit 1;; esac\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CC", str(broken))
    build.compiler.cache_clear()
    try:
        with pytest.raises(CompilerFailed, match="no space"):
            Program.load(json_path("matching").read_bytes())
        monkeypatch.setenv("CC", "no-such-compiler")
        build.compiler.cache_clear()
        with pytest.raises(CompilerFailed, match="install"):
            Program.load(json_path("matching").read_bytes())
    finally:
        build.compiler.cache_clear()
    assert not [p for p in build.cache_dir().glob("*") if p.suffix == ".so"]
