"""p4runtime-shell on switches that the control plane deploys to."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from controlplane.cli import shell
from controlplane.targets import fabric
from controlplane.targets.base import SwitchAddress
from controlplane.targets.p4runtime.target import P4RuntimeTarget
from softswitch.tests.support.shell import needs_shell, say
from tests.deploy.certificates import make_certificates
from tests.deploy.rules import small
from tests.deploy.switch import Switch

LOOK = """
entries = list(table_entry["label_table"].read())
print("entries", len(entries), sorted(int.from_bytes(e.match["label"].exact.value, "big") for e in entries))
print("verdicts", sum(1 for _ in counter_entry["verdict_counter"].read()))
print("flows", sum(1 for _ in direct_counter_entry["label_counter"].read()))
for group in multicast_group_entry(5).read(): print("ports", sorted(r.egress_port for r in group.replicas))

entries[0].delete()
"""


def command(switches: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "controlplane.shell", "s1", "--switches", str(switches), *options]


def switches_file(folder: Path, address: str, device_id: int = 7, **more: object) -> Path:
    file = folder / "switches.json"
    file.write_text(json.dumps({"s1": {"address": address, "device_id": device_id, **more}}))
    return file


@needs_shell
def test_the_shell_only_reads_beside_a_controller(switch: Switch, target: P4RuntimeTarget, tmp_path: Path) -> None:
    fabric.install([target], {"s1": small("s1")})
    printed = say(command(switches_file(tmp_path, switch.address)), LOOK, tmp_path)
    assert "entries 3 [1, 2, 3]" in printed
    assert "verdicts 10" in printed and "flows 3" in printed and "ports [1, 3]" in printed
    assert "PERMISSION_DENIED" in printed
    assert target.alive and len(target.read().labels) == 3


@needs_shell
def test_shell_writes_over_tls_when_asked_to(tmp_path: Path, program) -> None:
    try:
        files = make_certificates(tmp_path)
    except FileNotFoundError:
        pytest.skip("needs openssl to make certificates")
    switch = Switch("softswitch", tmp_path, tls=files)
    client = {"authority": "ca.pem", "certificate": "client.pem", "key": "client.key"}
    entry = shell.find("s1", switches_file(tmp_path, switch.address, tls=client))
    try:
        switch.start(entry.tls)
        target = P4RuntimeTarget(SwitchAddress("s1", switch.address, 7, entry.tls), program)
        target.connect(20.0)
        fabric.install([target], {"s1": small("s1")})
        target.close()
        assert "PERMISSION_DENIED" not in say(command(tmp_path / "switches.json", "--write"), LOOK, tmp_path)
        target.connect(20.0)
        assert len(target.read().labels) == 2
        target.close()
    finally:
        switch.kill()


@pytest.fixture
def refusal(capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Return refusal(arguments): the message of `python -m controlplane.shell` when it opens no shell."""
    monkeypatch.setattr("os.execv", lambda *command: pytest.fail(f"{command} was started"))

    def run(*arguments: object) -> str:
        assert shell.main([str(argument) for argument in arguments]) == 1
        return capsys.readouterr().err

    return run


def test_a_switch_that_cannot_be_opened_is_reported(refusal: Callable[..., str], tmp_path: Path) -> None:
    file = switches_file(tmp_path, "127.0.0.1:1")
    assert "has no switch 's9'; it has s1" in refusal("s9", "--switches", file)
    nothing = tmp_path / "python"
    assert "make shell makes that environment" in refusal("s1", "--switches", file, "--python", nothing)
    gone = refusal("s1", "--switches", file, "--python", sys.executable)
    assert "switch s1 (127.0.0.1:1, device 7)" in gone and "it is not running, or not at this address" in gone


def test_switch_without_program_is_refused(refusal: Callable[..., str], tmp_path: Path) -> None:
    switch = Switch("softswitch", tmp_path)
    try:
        switch.start()
        said = refusal("s1", "--switches", switches_file(tmp_path, switch.address), "--python", sys.executable)
    finally:
        switch.kill()
    assert "runs no program: `inart deploy` loads one" in said
