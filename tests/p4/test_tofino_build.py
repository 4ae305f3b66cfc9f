"""The artifact for Tofino matches its sources, and its toolchain is found, used or named as missing."""

from __future__ import annotations

import io
import json
import os
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from p4src import artifacts, build, tofino_install, tofino_release, tofino_resources, tofino_toolchain
from p4src.protocol import PROTOCOL
from p4src.tofino_toolchain import BuildError, CompilerMissing, Toolchain

DEFAULTS = PROTOCOL.targets["tna"]
SIZES = (DEFAULTS.slots, DEFAULTS.label_table_size, DEFAULTS.route_table_size)
both = pytest.mark.parametrize("target", ["tna", "t2na"])


def tables(target: str, values: int | None = None) -> dict[str, dict[str, object]]:
    """Return bf-rt.json's tables by the last part of their names."""
    schema = json.loads(artifacts.find(target, values).program.read_text())
    return {table["name"].removesuffix(".pairs").rpartition(".")[2]: table for table in schema["tables"]}


@both
def test_the_manifest_matches_the_sources(target: str) -> None:
    manifest, defaults = artifacts.find(target).manifest, PROTOCOL.targets[target]
    assert manifest.sources == artifacts.source_digest(target), "run make p4-tofino"
    assert manifest.slots == defaults.slots
    assert (manifest.label_table_size, manifest.route_table_size) == SIZES[1:]
    assert manifest.values_per_packet == defaults.values_per_packet
    assert manifest.multicast_groups == defaults.multicast_groups


@both
def test_the_manifest_matches_the_program(target: str) -> None:
    manifest, found = artifacts.find(target).manifest, tables(target)
    assert found["label_table"]["size"] == manifest.label_table_size
    assert found["ipv4_table"]["size"] == manifest.route_table_size
    registers = {name: table["size"] for name, table in found.items() if table["table_type"] == "Register"}
    assert set(registers.values()) == {manifest.slots}
    assert 2 * sum(name.startswith("sum_") for name in registers) == manifest.values_per_packet


def test_the_folded_programs_manifest_matches_sources_and_program() -> None:
    """Both halves of the values are in the same registers."""
    target, values = tofino_toolchain.OF_TOFINO_2, tofino_toolchain.FOLDED
    manifest, found = artifacts.find(target, values).manifest, tables(target, values)
    assert manifest.sources == artifacts.source_digest(target), "run make p4-tofino"
    assert manifest.slots == tofino_toolchain.default_slots(target, values)
    assert found["label_table"]["size"] == manifest.label_table_size
    registers = {name: table["size"] for name, table in found.items() if table["table_type"] == "Register"}
    assert {registers.pop(name) for name in ("slot_epoch", "slot_sequence", "slot_flows")} == {manifest.slots}
    assert set(registers.values()) == {2 * manifest.slots}
    assert registers.keys() == {"slot_ticket", *(f"sum_{i:02x}" for i in range(values // 4))}


def test_tofino_1_adds_at_most_64_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("P4C_TOFINO", str(build_folder(tmp_path / "p4c", "exit 1")))
    assert build.main(["--target", "tna", "--values", "128", "--output", str(tmp_path)]) == 1
    assert "values per packet must be one of 4, 8, 16, 32, 64, not 128" in capsys.readouterr().err


@both
def test_files_are_small_enough_for_the_repository(target: str) -> None:
    kept = [path for path in artifacts.find(target).directory.iterdir() if path.is_file()]
    assert sum(path.stat().st_size for path in kept) < 300_000


@pytest.mark.timeout(900)
@both
def test_compiling_again_gives_the_same(tmp_path: Path, target: str) -> None:
    try:
        toolchain = Toolchain.find()
    except CompilerMissing as error:
        pytest.skip(str(error))
    kept = artifacts.find(target)
    if toolchain.version() != kept.manifest.compiler:
        pytest.skip(f"{toolchain.version()} is here, {kept.manifest.compiler} compiled the artifact")
    manifest = kept.manifest
    sizes = manifest.slots, manifest.label_table_size, manifest.route_table_size
    tofino_toolchain.compile_program(toolchain, manifest.values_per_packet, sizes, tmp_path, target=target)
    assert build.differences(tmp_path, kept.directory, target) == []


def test_without_the_compiler_make_skips_and_the_command_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("P4C_TOFINO", raising=False)
    assert build.main(["--target", "tna", "--if-possible", "--output", str(tmp_path)]) == 0
    assert "skipped: not on PATH: p4c-barefoot and bfas" in capsys.readouterr().out
    assert build.main(["--target", "tna", "--output", str(tmp_path)]) == 1
    assert "P4C_TOFINO" in capsys.readouterr().err


def test_a_folder_in_which_nothing_was_built_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("P4C_TOFINO", str(tmp_path))
    with pytest.raises(CompilerMissing, match="p4c-barefoot is missing"):
        Toolchain.find()


def script(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)


PARSER = """parser ingress: ALL
  name: pipe.InartIngressParser
  states:
    ethernet:
      match: [ half ]
          # - bit[96..111] -> half: hdr.ethernet.ether_type
      0x0800:  # ipv4
        next: ipv4
      0x****:
        next: end
    padding:
      match: [ ctr_neg ]
parser egress: ALL
  states:
    start:
      match: [ byte0 ]
"""


def build_folder(folder: Path, assembler: str, parser: str = PARSER) -> Path:
    """Make a build folder of p4c whose compiler accepts everything."""
    compiler = """case "$*" in *--version*) echo "p4c-barefoot"; echo "Version 1.2.3"; exit;; esac
echo "$@" > "$(dirname "$0")/said"
while [ "$1" != -o ]; do shift; done
mkdir -p "$2/pipe/logs"; cd "$2"
echo '{"tables": [{"name": "pipe.snapshot.cfg"}, {"name": "pipe.one"}]}' > bf-rt.json
touch inart.p4info.txt entries.txt pipe/logs/resources.json pipe/logs/phv.json
cp {} pipe/inart.bfa
"""
    (folder / "parser").mkdir(parents=True)
    (folder / "parser" / "inart.bfa").write_text(parser)
    compiler = compiler.replace("{}", str(folder / "parser" / "inart.bfa"))
    script(folder / "backends/tofino/bf-p4c/p4c-barefoot", compiler)
    script(folder / "backends/tofino/bf-asm/bfas", assembler)
    (folder / "CMakeCache.txt").write_text("CMAKE_HOME_DIRECTORY:INTERNAL=/somewhere/p4c\n")
    return folder


def test_a_program_that_only_the_compiler_accepts_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = build_folder(tmp_path / "p4c", "echo 'error: tofino supports up to 12 stages' >&2; exit 1\n")
    monkeypatch.setenv("P4C_TOFINO", str(folder))
    with pytest.raises(BuildError, match="up to 12 stages"):
        tofino_toolchain.compile_program(Toolchain.find(), 64, SIZES, tmp_path / "out")
    assert not (tmp_path / "out" / artifacts.MANIFEST).exists()


def test_the_assemblers_output_is_for_the_switch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = build_folder(tmp_path / "p4c", 'touch "$2/tofino.bin" "$2/context.json"\n')
    monkeypatch.setenv("P4C_TOFINO", str(folder))
    toolchain = Toolchain.find()
    assert toolchain.includes[0] == Path("/somewhere/p4c/p4include")
    manifest = tofino_toolchain.compile_program(toolchain, 64, SIZES, tmp_path / "out")
    assert manifest.compiler == "p4c-barefoot 1.2.3"
    assert set(os.listdir(tmp_path / "out" / "switch")) >= {"tofino.bin", "context.json", "bf-rt.json"}
    assert json.loads((tmp_path / "out" / "bf-rt.json").read_text()) == {"tables": [{"name": "pipe.one"}]}
    parser = (tmp_path / "out" / artifacts.PARSER).read_text()
    assert parser.startswith("parser ingress: ALL\n  name: pipe.InartIngressParser\n")
    assert "      0x0800:\n        next: ipv4\n" in parser and "egress" not in parser and "#" not in parser


def test_tofino_2_is_another_target_of_the_same_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = build_folder(tmp_path / "p4c", 'touch "$2/tofino2.bin" "$2/context.json"\n')
    monkeypatch.setenv("P4C_TOFINO", str(folder))
    assert build.main(["--target", "t2na", "--values", "64", "--output", str(tmp_path / "out")]) == 0
    made = artifacts.load(tmp_path / "out" / "t2na-64")
    assert made.manifest.target == "t2na" and made.manifest.sources == artifacts.source_digest("tna")
    assert (made.directory / "switch" / "tofino2.bin").is_file()
    said = (folder / "backends/tofino/bf-p4c/said").read_text()
    assert "--target tofino2 --arch t2na" in said and "-D__TARGET_TOFINO__=2" in said and "-DINART_VALUES=64" in said
    placed = tofino_install.files(made)
    described = json.loads(placed["share/p4/targets/tofino2/inart.conf"])
    assert described["chip_list"][0]["chip_family"] == "tofino2"
    assert "share/tofinopd/inart/pipe/tofino2.bin" in placed
    assert described["p4_devices"][0]["p4_programs"][0]["p4_pipelines"][0]["config"].endswith("/tofino2.bin")
    release = tofino_release.make(made, tmp_path)
    assert release.name.startswith("inart-t2na-64-") and set(tofino_release.read(release)[1]) == set(placed)
    other = artifacts.Artifact(made.directory, replace(made.manifest, target="v1model"))
    with pytest.raises(tofino_install.InstallError, match="is for v1model, not for Tofino"):
        tofino_install.files(other)


def test_a_compiler_that_drops_what_the_parser_selects_by_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other parser's matches, and those of counters, do not count."""
    blind = PARSER.replace("      match: [ half ]\n", "").replace("0x0800", "0x****")
    folder = build_folder(tmp_path / "p4c", 'touch "$2/tofino.bin" "$2/context.json"\n', blind)
    monkeypatch.setenv("P4C_TOFINO", str(folder))
    with pytest.raises(BuildError, match=r"does not look at packets.*11b050578a"):
        tofino_toolchain.compile_program(Toolchain.find(), 64, SIZES, tmp_path / "out")
    assert not (tmp_path / "out" / artifacts.MANIFEST).exists()


@pytest.mark.parametrize(
    ("values", "sizes", "message"),
    [(96, SIZES, "must be one of"), (64, (1000, 1, 1), "power of two"), (64, (1024, 0, 1), "at least 1")],
)
def test_impossible_build_options(values: int, sizes: tuple[int, int, int], message: str, tmp_path: Path) -> None:
    toolchain = Toolchain(tmp_path / "p4c-barefoot", tmp_path / "bfas")
    with pytest.raises(BuildError, match=message):
        tofino_toolchain.compile_program(toolchain, values, sizes, tmp_path / "out")


def test_installed_where_the_sdes_scripts_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("SDE_INSTALL", raising=False)
    assert tofino_install.main([]) == 1
    assert "Set SDE_INSTALL to P4 Studio's install folder" in capsys.readouterr().err
    monkeypatch.setenv("SDE_INSTALL", str(tmp_path / "sde"))
    assert tofino_install.main([]) == 1
    assert "is no install folder of P4 Studio" in capsys.readouterr().err
    (tmp_path / "sde" / "bin").mkdir(parents=True)
    built = tmp_path / "tna-64"
    built.mkdir()
    kept = artifacts.find("tna").directory
    for name in (artifacts.MANIFEST, artifacts.PROGRAMS["tna"], artifacts.P4INFO):
        (built / name).write_bytes((kept / name).read_bytes())
    assert tofino_install.main(["--artifacts", str(built)]) == 1
    assert "bf-rt.json is missing: make p4-tofino" in capsys.readouterr().err
    assert not (tmp_path / "sde" / "share").exists()
    (built / "switch").mkdir()
    for name in ("tofino.bin", "context.json", "bf-rt.json"):
        (built / "switch" / name).write_text(name)
    assert tofino_install.main(["--artifacts", str(built)]) == 0
    program, path = "inart", tmp_path / "sde"
    configuration = json.loads((path / "share/p4/targets/tofino" / f"{program}.conf").read_text())
    (device,) = configuration["p4_devices"]
    (described,) = device["p4_programs"]
    (pipeline,) = described["p4_pipelines"]
    assert described["program-name"] == program
    found = [(path / name).read_text() for name in (described["bfrt-config"], pipeline["context"], pipeline["config"])]
    assert found == ["bf-rt.json", "context.json", "tofino.bin"]


def test_a_binary_of_other_sources_is_not_installed(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    kept = artifacts.find("tna")
    stale = artifacts.Artifact(kept.directory, replace(kept.manifest, sources="0" * 64))
    with pytest.raises(tofino_install.InstallError, match="compiled from other sources than p4src/tofino: make p4-tof"):
        tofino_install.install(stale, tmp_path)


def built_artifact(folder: Path) -> Path:
    """Make the artifact with made-up files that only a switch needs."""
    kept = artifacts.find("tna").directory
    (folder / "switch").mkdir(parents=True)
    for name in (artifacts.MANIFEST, artifacts.PROGRAMS["tna"], artifacts.P4INFO):
        (folder / name).write_bytes((kept / name).read_bytes())
    for name in ("tofino.bin", "context.json", "bf-rt.json"):
        (folder / "switch" / name).write_text(name)
    return folder


def test_a_release_installs_the_compilers_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    built = built_artifact(tmp_path / "tna-64")
    made = tofino_release.make(artifacts.load(built), tmp_path / "one")
    assert made.read_bytes() == tofino_release.make(artifacts.load(built), tmp_path / "two").read_bytes()
    (tmp_path / "sde" / "bin").mkdir(parents=True)
    assert tofino_release.main(["install", str(made), "--sde-install", str(tmp_path / "sde")]) == 0
    assert "tna, 64 values a packet" in capsys.readouterr().out
    (tmp_path / "other" / "bin").mkdir(parents=True)
    for path in tofino_install.install(artifacts.load(built), tmp_path / "other"):
        assert (tmp_path / "sde" / path.relative_to(tmp_path / "other")).read_bytes() == path.read_bytes()
    description, _ = tofino_release.read(made)
    assert description["program"]["sources"] == artifacts.source_digest("tna")
    assert description["files"]["share/tofinopd/inart/pipe/tofino.bin"]["bytes"] == len("tofino.bin")


def test_a_release_that_is_not_whole_is_not_installed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "sde" / "bin").mkdir(parents=True)
    made = tofino_release.make(artifacts.load(built_artifact(tmp_path / "tna-64")), tmp_path)
    with tarfile.open(made) as archive:
        contents = {member.name: archive.extractfile(member).read() for member in archive}  # type: ignore[union-attr]

    def refused(changed: dict[str, bytes], why: str) -> None:
        with tarfile.open(tmp_path / "changed.tar.gz", "w:gz") as archive:
            for name, content in changed.items():
                member = tarfile.TarInfo(name)
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
        assert tofino_release.main(["install", str(archive.name), "--sde-install", str(tmp_path / "sde")]) == 1
        assert why in capsys.readouterr().err
        assert not (tmp_path / "sde" / "share").exists()

    binary = "share/tofinopd/inart/pipe/tofino.bin"
    refused({**contents, binary: b"tofino.bad"}, f"{binary} is not what release.json says")
    refused({name: content for name, content in contents.items() if name != binary}, "has other files than")
    refused({**contents, "../bin/sh": b""}, "has other files than")
    refused({binary: b""}, "is no release of the program for Tofino")
    (tmp_path / "cut.tar.gz").write_bytes(made.read_bytes()[:200])
    assert tofino_release.main(["install", str(tmp_path / "cut.tar.gz"), "--sde-install", str(tmp_path / "sde")]) == 1
    assert "is no release" in capsys.readouterr().err


def stage(number: int, alus: int) -> dict[str, object]:
    """Return a stage of the compiler's report."""
    return {
        "stage_number": number,
        "rams": {"nRows": 8, "nColumns": 10, "srams": [1] * 40},
        "map_rams": {"nRows": 8, "nUnits": 6, "maprams": [1] * 36},
        "tcams": {"nRows": 12, "nColumns": 2, "tcams": []},
        "meter_alus": {"nAlus": 4, "meters": [1] * alus},
        "logical_tables": {"size": 16, "ids": [1] * 5},
        "vliw": {"size": 32, "instructions": [1] * 9},
        "xbar_bytes": {"size": 194, "bytes": [1] * 35},
        "hash_bits": {"nBits": 52, "nFunctions": 8, "bits": [1] * 56},
    }


def test_the_resource_table_is_made_of_the_compilers_reports(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tofino_resources.main([str(tmp_path)]) == 1
    assert "make p4-tofino" in capsys.readouterr().err
    report = {"resources": {"mau": {"mau_stages": [stage(0, 1), stage(1, 4)]}}}
    (tmp_path / "resources.json").write_text(json.dumps(report))
    vector = [{"container_type": "normal", "bit_width": 32, "slices": [1]}] * 3
    unused = {"container_type": "normal", "bit_width": 32, "slices": []}
    (tmp_path / "phv.json").write_text(json.dumps({"containers": [*vector, unused]}))
    assert tofino_resources.main([str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2:6] == [
        "| 0 | 40 | 36 | 0 | 1 | 5 | 9 | 35 | 56 |",
        "| 1 | 40 | 36 | 0 | 4 | 5 | 9 | 35 | 56 |",
        "| all | 80 | 72 | 0 | 5 | 10 | 18 | 70 | 112 |",
        "| of | 160 | 96 | 48 | 8 | 32 | 64 | 388 | 832 |",
    ]
    assert "| normal | 0 of 64 | 0 of 96 | 3 of 64 |" in lines
