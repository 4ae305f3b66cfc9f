"""The command that tries public pairs, on pairs of the tests."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from softswitch.tests import public
from softswitch.tests.conformance.build import PROGRAMS

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler (cc)")


@pytest.fixture(name="folder")
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with a pair, a pair with other names, and files that are no programs."""
    monkeypatch.setattr(shutil, "which", lambda name: None)  # Without simple_switch_grpc there is no traffic.
    for name in ("kinds", "tables"):
        folder = tmp_path / name
        folder.mkdir()
        shutil.copy(PROGRAMS / f"{name}.json", folder / "bmv2.json")
        shutil.copy(PROGRAMS / f"{name}.p4info.txtpb", folder / "p4info.txt")
    (tmp_path / "tables" / "package.json").write_text("{}")
    shutil.copy(PROGRAMS / "tables.p4info.txtpb", tmp_path / "tables" / "bmv2_p4info.txt")
    (tmp_path / "cut.json").write_text('{"header_types": [')
    return tmp_path


def test_the_table(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert public.main([str(folder)]) == 0
    head, *rows, summary = capsys.readouterr().out.splitlines()
    assert head.split() == ["program", "load", "P4Info", "traffic"]
    assert rows[0].startswith("cut.json          not JSON: ")
    assert [row.split() for row in rows[1:]] == [["kinds/bmv2.json", "yes", "yes"], ["tables/bmv2.json", "yes", "yes"]]
    assert summary == "2 of 3 programs load; 2 of 2 P4Infos are accepted"


def test_a_malformed_program_or_refused_p4info_fails(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy(PROGRAMS / "tables.p4info.txtpb", folder / "kinds" / "p4info.txt")
    assert public.main([str(folder / "kinds")]) == 1
    assert "refused: table" in capsys.readouterr().out
    root = json.loads((folder / "tables" / "bmv2.json").read_text())
    root["headers"][0]["header_type"] = "none"
    (folder / "tables" / "bmv2.json").write_text(json.dumps(root))
    assert public.main([str(folder / "tables")]) == 1
    assert "malformed: " in capsys.readouterr().out
    assert public.main([str(folder / "nothing")]) == 2
