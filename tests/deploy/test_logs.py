"""The controller's log: with the time of day and without strangers' text; and taking out what is already taken out does
nothing.
"""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from controlplane.cli.certificates import Wanted, make
from controlplane.cli.controller import main as operate
from controlplane.planner.job import Job
from tests.deploy.fake_switch import FakeSwitch
from tests.support.config import config

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 60.0
TOPOLOGY = "leafspine:leaves=2,spines=1,servers=2"
LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \[ *\d+\.\d\d\] .+")
DATED = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d .+")
STRANGERS = (
    b"GET / HTTP/1.1\r\nHost: there\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(256)),
    b"SSH-2.0-OpenSSH_9.2\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 300,
    b"\x1b[31mred\x1b[0m\x07" * 20,
)


@pytest.mark.parametrize("tls", [False, True])
def test_the_log_has_times_and_no_text_of_strangers(tmp_path, tls):
    switches = {name: FakeSwitch(number) for number, name in enumerate(("e1", "e2", "s1"), 1)}
    file = tmp_path / "switches.json"
    file.write_text(json.dumps({n: {"address": s.address, "device_id": s.device_id} for n, s in switches.items()}))
    command = [
        sys.executable, "-m", "inart", "serve", "--topology", TOPOLOGY, "--bmv2", "--switches", str(file),
        "--state", str(tmp_path / "state"), "--listen", "127.0.0.1:0",
        *config(tmp_path, switches={"artifacts": "v1model-4"}),
    ]  # fmt: skip
    if tls:
        make(tmp_path / "ours", Wanted(operators=("alice",)))
        command += ["--credentials", str(tmp_path / "ours/controller")]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        assert process.stdout is not None and process.stderr is not None
        port = int(process.stdout.readline().decode().rsplit(":", 1)[1])
        for words in STRANGERS * 4:
            with socket.create_connection(("127.0.0.1", port), timeout=SECONDS) as stranger:
                stranger.settimeout(SECONDS)
                stranger.sendall(words)
                stranger.shutdown(socket.SHUT_WR)
                try:
                    while stranger.recv(4096):
                        pass
                except OSError:
                    pass  # The connection has been cut off, which is equally good.
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=SECONDS)
    finally:
        process.kill()
        process.wait(SECONDS)
        for switch in switches.values():
            switch.stop()
    lines = said.decode().splitlines()
    assert any("no job yet" in line for line in lines)
    strange = [line for line in lines if not LINE.fullmatch(line) and line != "serve: interrupted"]
    assert not strange


@pytest.mark.parametrize(
    "words",
    [
        ("ps_server", "--controller", "127.0.0.1:1", "--interface", "lo"),
        ("worker_agent", "serve", "--controller", "127.0.0.1:1", "--interface", "lo", "--socket", "{folder}/a.sock"),
        ("overlay", "agent", "--coordinator", "127.0.0.1:1", "--node", "a", "--listen", "127.0.0.1:0"),
    ],
    ids=lambda words: words[0],
)
def test_agents_say_when_something_happened(tmp_path, words):
    command = [sys.executable, "-m", *(word.format(folder=tmp_path) for word in words)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        assert DATED.match(line) and "127.0.0.1:1" in line
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("jobs", [1, 2])
def test_taking_a_switch_out_reports_that_it_is_empty(rig, capsys, jobs):
    for job in [Job("A", ("h1", "h4"), ("h2",), 10**6), Job("B", ("h3", "h5"), ("h6",), 10**6)][:jobs]:
        rig.add(job)
    address = rig.serve()
    said = ""
    for spine in ("s1", "s1"):  # The second time nothing is left to change.
        assert operate(["replan", "--controller", address, "--without", spine]) == 0
        said = capsys.readouterr().out
        assert rig.network.empty([spine])
        assert f"{spine}: empty, no job uses it any more" in rig.log[-1]
    assert "no job uses what is disabled any more" in said
    assert "nothing is better" not in said
    assert not rig.network.empty(["s2"])
    assert not rig.network.empty(["s2-e1"]) and rig.network.empty(["e1-s1"])
