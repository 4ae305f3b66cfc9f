"""Our plugin for NCCL adds in the network for whoever calls it by NCCL's interface.

NCCL itself needs GPUs; a program of ours calls the plugin in its place (nccl_ranks.c).
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.outside.network import Nodes
from worker_agent.clients import nccl
from worker_agent.clients.build import HERE

RANKS = 3
SECONDS = 240
PROGRAM = Path(__file__).with_name("nccl_ranks.c")


def test_a_disk_that_is_full_leaves_the_plugin_that_was_there(tmp_path: Path, monkeypatch, capsys) -> None:
    made, folder = tmp_path / "made.so", tmp_path / "folder"
    folder.mkdir()
    (folder / nccl.NAME).write_text("earlier")
    made.write_bytes(bytes(100_000))
    monkeypatch.setattr(nccl, "nccl_library", lambda: made)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, before[1]))
    try:
        assert nccl.main([str(folder)]) == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert capsys.readouterr().err == "inart nccl: [Errno 27] File too large\n"
    assert {file.name: file.read_text() for file in folder.iterdir()} == {nccl.NAME: "earlier"}
    assert nccl.main([str(folder)]) == 0
    assert capsys.readouterr().out == f"{folder / nccl.NAME}\n" and os.access(folder / nccl.NAME, os.X_OK)


@pytest.mark.namespaces
@pytest.mark.timeout(400)
def test_plugin_sums_in_the_network_and_leaves_a_second_group_to_nccl(tmp_path: Path) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler (cc)")
    if os.geteuid() != 0:
        pytest.skip("needs root: network namespaces")
    program = tmp_path / "nccl_ranks"
    words = ["-std=c11", "-D_GNU_SOURCE", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", f"-I{HERE}", str(PROGRAM)]
    subprocess.run([compiler, *words, "-o", str(program), "-lm", "-ldl"], check=True)
    assert nccl.main([str(tmp_path)]) == 0
    with Nodes(RANKS) as nodes:
        before = nodes.added()
        done = subprocess.run(
            [str(program), str(tmp_path / nccl.NAME), *nodes.agents], capture_output=True, text=True, timeout=SECONDS,
            check=False, env=os.environ | {"NCCL_SOCKET_IFNAME": "lo"}, start_new_session=True,
        )  # fmt: skip
        assert (done.returncode, done.stdout) == (0, "all right\n"), f"{done.stderr}\n{nodes.log()}"
        assert nodes.added() > before
    assert "NCCL does the sums of this group" in done.stderr
