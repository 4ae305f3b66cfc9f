"""docs/sites.md tried as its reader would: its script, its commands, two sites with certificates."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import networkx as nx
import pytest

from inart.command import main
from overlay.core.errors import OverlayError
from overlay.sites import command, init
from overlay.sites.packing import bits_a_value
from tests.support.waiting import wait_until
from topologies.ports import free_port
from topologies.wan.networks import Wan, emulated

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "sites.md").read_text()


def inart(*words: str, **options) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen([sys.executable, "-m", "inart", *words], stdout=subprocess.PIPE, text=True,
                            env=environment, **options)  # fmt: skip


def test_the_manuals_table_of_bits_equals_the_packed_format():
    rows = re.findall(r"^\| (4|8|16) \| (.*) \|$", PAGE, flags=re.M)
    assert len(rows) == 3
    for bits, cells in rows:
        wanted = [f"{bits_a_value(int(bits), sites):.1f}" for sites in (2, 4, 8, 16)]
        assert cells.split(" | ") == wanted, bits


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["status", "--coordinator", "127.0.0.1:1"], "`inart site coordinator` starts one"),
        (["run", "--coordinator", "127.0.0.1:1", "--"], "what is to be run?"),
        (["run", "--coordinator", "127.0.0.1:1", "--timeout", "0", "--", "true"], "(waited 0 s: --timeout)"),
        (["coordinator", "--sites", "2", "--listen", "192.0.2.1:9700"], "or --insecure"),
    ],
)
def test_errors_say_what_to_do(words, said, capsys):
    assert main(["site", *words]) == 1
    assert said in capsys.readouterr().err


def test_an_unusable_file_of_known_rates_is_named(tmp_path, capsys):
    (tmp_path / "site.toml").write_text('[sites]\nlinks = "none.json"\n')
    assert main(["site", "coordinator", "--sites", "2", "--config", str(tmp_path / "site.toml")]) == 1
    assert '"links": [[from, to, Mbit/s], ..]' in capsys.readouterr().err


@pytest.mark.parametrize("where", ["10.0.0.1:9700,10.0.0.2:9700", "10.0.0.1"])
def test_one_coordinator_is_given_whether_by_option_or_environment(where, monkeypatch, capsys):
    for words in (["--coordinator", where], []):
        with pytest.raises(SystemExit):
            main(["site", "status", *words])
        assert f"{where!r} is not HOST:PORT" in capsys.readouterr().err
        monkeypatch.setenv("INART_COORDINATOR", where)
    with pytest.raises(OverlayError, match="is not HOST:PORT"):
        init(site="a")


def test_status_says_what_was_measured_how_far_a_round_is_and_who_is_waited_for(monkeypatch, capsys):
    found = {
        "sites": {}, "links": [{"from": "a", "to": "b", "mbps": 80.0, "round_trip_ms": 12.5, "loss": 0.01}],
        "sends_at_most_mbps": {"a": 100.0}, "receives_at_most_mbps": {},
        "begun": True, "round": 7, "waits_for": ["c"], "measuring": False, "acts": True, "last": {},
        "under_way": [{"round": 7, "op": "words", "sites": 3, "without_result": ["a", "b"]}],
    }  # fmt: skip
    monkeypatch.setattr(command, "ask", lambda arguments: found)
    assert main(["site", "status", "--coordinator", "127.0.0.1:1"]) == 0
    assert [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()] == [
        "a -> b 80.00 Mbit/s 12.5 ms 1.00% lost",
        "a sends at most 100.00 Mbit/s in all",
        "round 7 waits for c",
        "round 7 is under way: 3 sites add, 2 of them wait for the result (a, b)",
    ]


def test_a_site_that_is_started_before_its_coordinator_waits_for_it():
    where = f"127.0.0.1:{free_port()}"
    with ExitStack() as stack:
        words = ["site", "run", "--coordinator", where, "--site", "a", "--", sys.executable, "-c", "print('trained')"]
        site = stack.enter_context(inart(*words, stderr=subprocess.PIPE))
        stack.callback(site.kill)
        assert site.stderr is not None
        said = site.stderr.readline()
        assert "no coordinator answers" in said and "waits up to 60 s" in said
        coordinator = stack.enter_context(inart("site", "coordinator", "--sites", "1", "--listen", where))
        stack.callback(coordinator.kill)
        output, errors = site.communicate(timeout=60)
        assert (site.returncode, output, errors) == (0, "trained\n", "")


COUNTS_INTERRUPTS = """
import signal, time
count = []
signal.signal(signal.SIGINT, lambda *_: count.append(1))
print("begins", flush=True)
while not count:
    time.sleep(0.05)
time.sleep(1)
print("interrupted", len(count), flush=True)
"""


def test_ctrl_c_reaches_the_script_once():
    """A second one would end what the first one began, such as to save the model. The terminal's own reaches it."""
    where = f"127.0.0.1:{free_port()}"
    with ExitStack() as stack:
        coordinator = stack.enter_context(inart("site", "coordinator", "--sites", "1", "--listen", where))
        stack.callback(coordinator.kill)
        words = ["site", "run", "--coordinator", where, "--site", "a", "--", sys.executable, "-c", COUNTS_INTERRUPTS]
        pid, terminal = pty.fork()
        if pid == 0:
            os.environ["PYTHONPATH"] = str(ROOT)
            os.execv(sys.executable, [sys.executable, "-m", "inart", *words])
        stack.callback(os.close, terminal)
        stack.callback(os.waitpid, pid, 0)
        stack.callback(os.kill, pid, signal.SIGKILL)
        said = b""
        while b"begins" not in said:
            said += os.read(terminal, 4096)
        os.write(terminal, b"\x03")
        while not (b"interrupted" in said and said.endswith(b"\n")):
            said += os.read(terminal, 4096)
        assert b"interrupted 1" in said


def test_the_script_ends_when_its_launcher_is_killed():
    where = f"127.0.0.1:{free_port()}"
    with ExitStack() as stack:
        coordinator = stack.enter_context(inart("site", "coordinator", "--sites", "1", "--listen", where))
        stack.callback(coordinator.kill)
        sleeps = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
        words = ["site", "run", "--coordinator", where, "--site", "a", "--", sys.executable, "-c", sleeps]
        site = stack.enter_context(inart(*words))
        assert site.stdout is not None
        script = int(site.stdout.readline())
        site.kill()
        wait_until(lambda: not Path(f"/proc/{script}").exists(), "the script has ended")


def test_a_coordinator_of_no_site_is_refused(capsys):
    with pytest.raises(SystemExit):
        main(["site", "coordinator", "--sites", "0"])
    assert "at least 1" in capsys.readouterr().err


@pytest.mark.namespaces
def test_two_hosts_with_the_manual_alone(tmp_path):
    """The page's commands in two network namespaces, the coordinator beside one of the sites, and no addresses given
    but the coordinator's: they train, and see their links."""
    graph = nx.DiGraph(name="two")
    graph.add_edge(0, 1, mbps=40.0)
    graph.add_edge(1, 0, mbps=20.0)
    script, secrets = tmp_path / "train.py", tmp_path / "secrets"
    script.write_text(re.findall(r"^```python\n(.*?)^```", PAGE, flags=re.M | re.S)[0])
    assert main(["certificates", "--folder", str(secrets), "--nodes", "paris,tokyo"]) == 0
    topology = emulated(graph, 5.0)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with Wan(topology, 0.0, 0) as wan, ExitStack() as stack:

        def begin(host: str, *words: str) -> subprocess.Popen[str]:
            command = [sys.executable, "-m", "inart", "site", *words]
            process = wan.emulation.popen(host, command, stdout=subprocess.PIPE, text=True, env=environment)
            stack.callback(process.wait)
            stack.callback(process.kill)
            return process

        where = f"{topology.address('h0')}:9700"
        own = ["--credentials", str(secrets / "controller")]
        coordinator = begin("h0", "coordinator", "--sites", "2", "--listen", where, *own)
        assert coordinator.stdout is not None and where in coordinator.stdout.readline()
        sites = []
        for host, name in (("h0", "paris"), ("h1", "tokyo")):
            own = ["--credentials", str(secrets / "nodes" / name)]
            words = ["--coordinator", where, "--site", name, *own, "--", sys.executable, str(script)]
            sites.append(begin(host, "run", *words))
        for site in sites:
            lines = site.communicate(timeout=200)[0].splitlines()
            assert site.returncode == 0
            assert [line.split(":")[0] for line in lines] == [f"step {19 + 20 * k}" for k in range(5)]
            assert all("with paris, tokyo" in line for line in lines)
        measured = begin("h1", "status", "--coordinator", where, "--json", *own)
        links = json.loads(measured.communicate(timeout=100)[0])["links"]
        status = begin("h1", "status", "--coordinator", where, *own)
        assert "waits for 2 more sites" in status.communicate(timeout=100)[0]  # Both have left.
    rates = {(link["from"], link["to"]): link["mbps"] for link in links}
    # Never more than the link's; a busy machine fills it less (26 of 40 Mbit/s were seen at a load of 26).
    assert 20.0 < rates["paris", "tokyo"] < 50.0
    assert 10.0 < rates["tokyo", "paris"] < 25.0
    assert all(link["round_trip_ms"] >= 10.0 for link in links)
