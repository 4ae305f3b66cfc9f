"""The log of Mininet's switch, with a stand-in where Mininet is not installed."""

from __future__ import annotations

import importlib
import stat
import sys
import tempfile
from pathlib import Path
from types import ModuleType

import pytest


class Switch:
    """The part of Mininet's class that SoftSwitch uses."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.intfs: dict[int, object] = {}

    def stop(self, deleteIntfs: bool = True) -> None:
        pass


def test_the_log_follows_no_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = ModuleType("mininet.node")
    node.Switch = Switch  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mininet", ModuleType("mininet"))
    monkeypatch.setitem(sys.modules, "mininet.node", node)
    monkeypatch.delitem(sys.modules, "softswitch.app.mininet_switch", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "softswitch-s1.log").symlink_to(victim)
    try:
        switch = importlib.import_module("softswitch.app.mininet_switch").SoftSwitch("s1", json="/does/not/exist.json")
        with pytest.raises(RuntimeError, match=r"s1 did not start: .*exist\.json"):
            switch.start([])
        switch.stop()
    finally:
        sys.modules.pop("softswitch.app.mininet_switch", None)  # Its base class is the stand-in.
    assert victim.read_text() == "precious"
    assert "exist.json" in switch.log.read_text()
    assert switch.log.parent == tmp_path
    assert stat.S_IMODE(switch.log.stat().st_mode) == 0o600
