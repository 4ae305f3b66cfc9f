"""The compiled programs in the repository match their sources."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from p4src import artifacts, build, generate
from p4src.protocol import PROTOCOL, ProtocolError, Verdict, parse

KEPT = list(PROTOCOL.targets["v1model"].built)


def test_generated_files_are_up_to_date() -> None:
    assert generate.main(["--check"]) == 0


def test_a_stale_generated_file_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stale = tmp_path / "constants.p4"
    stale.write_text("old")
    monkeypatch.setattr(generate, "ROOT", tmp_path)
    monkeypatch.setattr(generate, "outputs", lambda: {stale: "new"})
    assert generate.main(["--check"]) == 1
    assert stale.read_text() == "old"
    assert generate.main([]) == 0
    assert generate.main(["--check"]) == 0


def test_the_c_header_compiles_and_agrees(tmp_path: Path) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler (cc) on PATH")
    source = tmp_path / "check.c"
    source.write_text(
        '#include <stdio.h>\n#include "protocol.h"\nint main(void) { const unsigned char mac[] = INART_GROUP_MAC;\n'
        'printf("%d %d %d %d %02x", INART_FRAME_BYTES(256), INART_OFFSET_BITMAP, INART_HEADER_BYTES, INART_FLAG_MAXIMUM'
        ", mac[5]); return sizeof mac != 6; }\n"
    )
    include = generate.ROOT / "worker_agent" / "native"
    command = [compiler, "-Wall", "-Wextra", "-Werror", "-I", str(include), str(source), "-o", str(tmp_path / "check")]
    subprocess.run(command, check=True)
    output = subprocess.run([str(tmp_path / "check")], check=True, capture_output=True, text=True).stdout
    bitmap = PROTOCOL.field("bitmap").offset
    assert output == f"{PROTOCOL.frame_bytes(256)} {bitmap} 24 4 {PROTOCOL.group_mac[5]:02x}"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_workers": 1024}, "max_workers must be 1 to 1023"),
        ({"group": "10.0.0.1"}, "multicast"),
        ({"group": "239.1.2"}, "group"),
        ({"udp_port_base": "0x5800"}, "aligned"),
        ({"udp_port_mask": "0xF0F0"}, "aligned"),
        ({"ports_per_job": 24}, "ports_per_job"),
        ({"ttl": 256}, "ttl"),
        ({"gateway_mac": "02:00"}, "MAC"),
        ({"header": [["version", 7]]}, "version"),
        ({"targets": {"v1model": {"slots": 1, "built": []}}}, "values_per_packet"),
    ],
)
def test_a_wrong_protocol_file_is_refused(change: dict[str, object], message: str) -> None:
    data = json.loads((artifacts.DIRECTORY / "protocol.json").read_text())
    with pytest.raises(ProtocolError, match=message):
        parse({**data, **change})


def test_every_verdict_has_a_name() -> None:
    assert [verdict.name.lower() for verdict in Verdict] == list(PROTOCOL.verdicts)


@pytest.mark.parametrize("values", KEPT)
def test_the_manifest_matches_the_sources(values: int) -> None:
    artifact = artifacts.find(values=values)
    assert artifact.manifest.sources == artifacts.source_digest("v1model"), "run python -m p4src.build"
    defaults = PROTOCOL.targets["v1model"]
    assert artifact.manifest.values_per_packet == values
    assert artifact.manifest.slots == defaults.slots
    assert artifact.manifest.label_table_size == defaults.label_table_size
    assert artifact.manifest.route_table_size == defaults.route_table_size
    assert artifact.manifest.multicast_groups == defaults.multicast_groups


@pytest.mark.parametrize(
    ("source", "other"),
    [
        ("a = 1;   // one\n\n\t// two\nb = 2;\n", "a = 1;\nb = 2;\n"),
        ('a/* one\n two */b  = 1; /* " */\n', "a b = 1;"),
        ("#define F(i) \\\n    a; \\\n    b;\n", "#define F(i) a; b; // both"),
        ("a; // a line that goes on \\\n b;\nc;", "a;\nc;"),
    ],
)
def test_comments_and_blanks_are_no_source(source: str, other: str) -> None:
    assert artifacts.without_comments(source) == artifacts.without_comments(other)


@pytest.mark.parametrize(
    ("source", "other"),
    [
        ("a b", "ab"),
        ("a/**/b", "ab"),
        ("#define F(i) i", "#define F (i) i"),
        ('#include "//a.p4"', '#include "//b.p4"'),
        ('@name("a  b")', '@name("a b")'),
        ('@name("a\\" // b")', '@name("a\\" // c")'),
        ("#define F(i) a; \\\n// nothing more\nb;", "#define F(i) a; \\\nb;"),
        ("#define A\nB", "#define A B"),
        ("a /* b", "a /* c"),
    ],
)
def test_what_is_compiled_otherwise_is_another_source(source: str, other: str) -> None:
    assert artifacts.without_comments(source) != artifacts.without_comments(other)


def test_a_comment_asks_only_v1model_to_be_compiled_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """bmv2's JSON has the lines of the source and some of its comments; what Tofino's compiler writes has neither."""
    targets = ("v1model", "tna", "t2na")
    before = [artifacts.source_digest(target) for target in targets]
    sources = tmp_path / "p4src"
    shutil.copytree(artifacts.DIRECTORY, sources, ignore=shutil.ignore_patterns("artifacts"))
    monkeypatch.setattr(artifacts, "DIRECTORY", sources)
    assert [artifacts.source_digest(target) for target in targets] == before
    for name in ("bmv2/slots.p4", "tofino/slots.p4", "tofino/entries/decide.p4", "include/repeat.p4"):
        (sources / name).write_text("// A comment.\n\n" + (sources / name).read_text())
    commented = [artifacts.source_digest(target) for target in targets]
    assert [new == old for new, old in zip(commented, before, strict=True)] == [False, True, True]
    (sources / "tofino" / "slots.p4").write_text("const bit<8> MORE = 1;\n")
    assert artifacts.source_digest("tna") != before[1]


@pytest.mark.parametrize("values", KEPT)
def test_the_manifest_matches_the_program(values: int) -> None:
    """Slots, tables and values of the manifest are those of the compiled JSON itself."""
    artifact = artifacts.find(values=values)
    program = json.loads(artifact.program.read_text())
    sizes = {register["name"].rpartition(".")[2]: register["size"] for register in program["register_arrays"]}
    assert set(sizes.values()) == {artifact.manifest.slots}
    assert sum(name.startswith("sum_") for name in sizes) == values
    tables = {table["name"]: table["max_size"] for pipeline in program["pipelines"] for table in pipeline["tables"]}
    assert tables["label_table"] == artifact.manifest.label_table_size
    assert tables["ipv4_table"] == artifact.manifest.route_table_size


def test_files_are_small_enough_for_the_repository() -> None:
    for artifact in artifacts.available():
        assert artifact.program.stat().st_size < 1_500_000


@pytest.mark.parametrize("values", KEPT)
def test_compiling_again_gives_the_same(values: int, tmp_path: Path) -> None:
    if shutil.which(build.COMPILER) is None:
        pytest.skip(f"{build.COMPILER} is not on PATH")
    kept = artifacts.find(values=values)
    version = build.compiler_version(build.compiler_path())
    if version != kept.manifest.compiler:
        pytest.skip(f"{version} is here, {kept.manifest.compiler} compiled the artifact: outputs may differ")
    options = kept.manifest
    build.compile_program(values, options.slots, options.label_table_size, options.route_table_size, tmp_path)
    assert build.differences(tmp_path, kept.directory) == []


def test_missing_artifacts_are_named() -> None:
    with pytest.raises(artifacts.ArtifactError, match=r"128 values.*4, 64, 256.*--values 128"):
        artifacts.find(values=128)
    with pytest.raises(artifacts.ArtifactError, match="no target 'abacus'"):
        artifacts.find("abacus")


def test_a_broken_artifact_is_refused(tmp_path: Path) -> None:
    with pytest.raises(artifacts.ArtifactError, match="manifest"):
        artifacts.load(tmp_path)
    (tmp_path / artifacts.MANIFEST).write_text('{"target": "v1model"}')
    with pytest.raises(artifacts.ArtifactError, match="build it again"):
        artifacts.load(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["--values", "100"], "must be one of"), (["--values", "4", "--slots", "100"], "power of two")],
)
def test_impossible_build_options(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert build.main([*arguments, "--output", str(tmp_path)]) == 1
    assert message in capsys.readouterr().err


def test_without_the_compiler_the_build_says_what_to_do(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "p4src.build", "--values", "4", "--output", str(tmp_path)]
    done = subprocess.run(
        command, cwd=generate.ROOT, env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "p4c-bm2-ss is not on PATH" in done.stderr
