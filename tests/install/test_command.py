"""The command `inart` works after `make setup`, on a node that has only the base distribution, and once it knows where
the controller is.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import inart.command
from inart import __version__
from tests.install.test_wheel import ROOT, run

SETUPTOOLS = "setuptools==84.2.1"  # The version is that of requirements.txt.
COPIED = ("setup.sh", "setup.py", "pyproject.toml", "README.md")

# This environment has Python with the packages of the base distribution and of no extra.
BASE = """
import sys
EXTRAS = {"networkx", "scipy", "p4runtime", "p4", "pyomo", "highspy", "matplotlib", "cryptography", "grpc_health",
          "torch", "mininet", "scapy", "uvloop", "bokeh", "prometheus_client"}
class Without:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in EXTRAS:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Without())
from inart.command import main
sys.exit(main(sys.argv[1:]))
"""


def base(*words: object, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {name: text for name, text in os.environ.items() if name != "INART_CONTROLLER"} | more
    command = [sys.executable, "-c", BASE, *map(str, words)]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False)


def test_the_doctor_runs_on_a_node_that_only_trains() -> None:
    done = base("doctor")
    assert "Traceback" not in done.stderr and done.returncode in (0, 1)
    assert "agents' I/O:" in done.stdout
    assert "tofino:" in done.stdout, "what needs no planner is looked at"
    last = done.stdout.splitlines()[-1]
    assert "inart[control]" not in last, "nothing of it is needed there"
    asked = base("doctor", "--switches", "switches.json")
    assert "inart[control]" in asked.stdout.splitlines()[-1], "the switches that it was asked about were not looked at"


@pytest.mark.parametrize("words", [("--help",), ("--version",), ("doctor",)])
def test_output_that_cannot_be_written_is_a_message_and_a_closed_pipe_is_none(words: tuple[str, ...]) -> None:
    command = [sys.executable, "-c", BASE, *words]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(command, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "inart: the output cannot be written: No space left on device\n"
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as closed:
        done = subprocess.run(command, cwd=ROOT, stdout=closed, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    without = ["sh", "-c", 'exec "$@" >&-', "sh", *command]
    assert subprocess.run(without, cwd=ROOT, stderr=subprocess.PIPE, text=True, check=False).stderr == ""


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device", "plan"), ConnectionRefusedError()])
def test_an_error_that_is_not_about_the_output_is_not_said_to_be(
    error: OSError, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(words: list[str]) -> int:
        raise error

    monkeypatch.setattr(inart.command, "run", fail)
    with pytest.raises(type(error)):
        inart.command.main([])


@pytest.mark.parametrize("words", [("status",), ("job", "list"), ("job", "show", "a"), ("replan",)])
def test_the_controllers_address_is_configured_once_for_all_commands(words: tuple[str, ...]) -> None:
    asked = base(*words, INART_CONTROLLER="127.0.0.1:1")
    assert asked.returncode == 1 and "127.0.0.1:1" in asked.stderr
    given = base(*words, "--controller", "127.0.0.1:2", INART_CONTROLLER="127.0.0.1:1")
    assert given.returncode == 1 and "127.0.0.1:2" in given.stderr
    unknown = base(*words)
    assert unknown.returncode == 2 and "set INART_CONTROLLER" in unknown.stderr


@pytest.mark.timeout(300)
def test_setup_brings_the_command(tmp_path: Path) -> None:
    """`make setup` works in a copy of the repository with few requirements; run again, it has nothing to do."""
    if not shutil.which("mnexec") or not shutil.which("etcd"):
        pytest.skip("Debian packages are missing, which setup.sh would install")
    copied = ("inart", "controlplane", "p4src/*.py", "p4src/protocol.json", "softswitch")
    names = run("git", "ls-files", *copied, cwd=ROOT).splitlines()
    for name in (*COPIED, *names):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "requirements.txt").write_text(f"{SETUPTOOLS}\n")
    environment = {name: text for name, text in os.environ.items() if not name.startswith(("VENV", "PYTHON"))}
    environment["PYTHON"] = sys.executable
    first = subprocess.run(["./setup.sh"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    if "could not install requirements.txt" in first.stderr:
        pytest.skip(f"the package index is not reachable: {first.stderr.strip()[-200:]}")
    assert first.returncode == 0, first.stderr
    command = tmp_path / ".venv" / "bin" / "inart"
    assert run(command, "--version", cwd="/") == f"inart {__version__}\n"
    found = "import importlib.util; print(importlib.util.find_spec('softswitch') is not None)"
    assert run(command.parent / "python", "-c", found, cwd="/") == "True\n", "the switches of `inart emulate`"
    again = subprocess.run(["./setup.sh"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert again.stdout == "setup: .venv: everything is installed\n"
