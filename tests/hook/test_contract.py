"""Backend "inart" keeps the contract of torch.distributed: here with two ranks whose network is not available."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed as dist

from tests.hook.conftest import ROOT
from tests.hook.processes import SECONDS, Rank
from tests.hook.test_training import run_ranks
from worker_agent.errors import AbortedError
from worker_agent.torch.backend import create
from worker_agent.torch.waiting import Follower


def ranks(scenario: str, folder: Path, **arguments: Any) -> list[dict[str, Any]]:
    nodes = [{"agent": f"unix:{folder}/{name}.sock"} for name in ("w0", "w1")]
    return run_ranks(scenario, folder, nodes, **arguments)


def first_of_ranks(scenario: str, folder: Path) -> dict[str, Any]:
    """Run a scenario in which rank 0 sends a message after which rank 1 goes on, and return the result of rank 0."""
    store = str(folder / "store")
    started = [Rank(scenario, rank=rank, store=store, agent=f"unix:{folder}/w{rank}.sock") for rank in (0, 1)]
    started[0].receive()
    for rank in started:
        rank.connection.send("go on")
    first, _ = [rank.result() for rank in started]
    return first


def test_torch_compile_does_not_trace_into_the_process_group(tmp_path: Path) -> None:
    for result in ranks("compiled", tmp_path):
        assert result["compiled"] == pytest.approx(result["plain"])
        assert result["whole"] == pytest.approx(result["plain"])
        assert result["collectives"] == [6.0, 6.0, 6.0]
        assert result["hooked"], "the hook's gradients with optimize_ddp='python_reducer' are DDP's"


def test_the_hook_leaves_sparse_gradients_to_the_process_group(tmp_path: Path) -> None:
    for result in ranks("sparse", tmp_path):
        assert result["hook"] == pytest.approx(result["default"])
        assert result["hook sparse"] and result["default sparse"]
        assert result["counted"] == 3 and result["steps"] == 3


def test_means_of_integers_are_integers_and_those_of_bool_values_are_refused(tmp_path: Path) -> None:
    for rank, result in enumerate(ranks("averages", tmp_path)):
        assert result["whole"] == [1, -1, 4]
        assert result["large"] == [pytest.approx(3e38), 1.0], "only the sum is beyond float32"
        assert result["part"] == [[0], [2]][rank]
        assert result["flags"] == [rank == 0, True], "what was refused is unchanged"
        assert "bool values have no mean" in result["error"]


OWN_MEMBERS = {
    "_device_types": ("[device(type='cpu')]", "[device(type='cuda'), device(type='cpu')]"),
    "_get_backend_name": ("'inart'", "'gloo'"),
    "name": ("'inart'", "'gloo'"),
    "supports_reconfigure": ("False", "True"),
}
"""Maps members that differ from those of gloo to the two values. The devices are those of this machine, and the ranks
of a group cannot change.
"""
ADDRESSES = {"_id", "_backend_id", "group_name"}
REFUSED = {"get_reconfigure_handle", "reconfigure", "register_pre_hook", "register_post_hook"}
"""Members of torch 2.15 that raise an error which says why."""
SCATTERS = re.compile(r"reduce_scatter(_tensor)?: (_get_sequence_number|timeout)")
"""Members that the handles of gloo's reduce-scatter do not have."""


def test_members_of_groups_and_handles_are_those_of_gloo(tmp_path: Path) -> None:
    for result in ranks("members", tmp_path):
        assert all(result.pop(name)[0] == "NotImplementedError" for name in REFUSED & set(result))
        found = {name: pair for name, pair in result.items() if name not in ADDRESSES and not SCATTERS.fullmatch(name)}
        assert {name: pair for name, pair in found.items() if OWN_MEMBERS.get(name) != pair} == {}


def test_state_dicts_are_broadcast_and_saved_in_the_background(tmp_path: Path) -> None:
    first, second = ranks("state dicts", tmp_path)
    assert first == second
    assert all(first.values())


def test_wait_raises_the_original_error_and_a_future_its_text_once(tmp_path: Path) -> None:
    found = first_of_ranks("endings", tmp_path)
    assert found["wait"] == found["copied"] == "AbortedError: the process group was aborted"
    assert found["exception"] == "AbortedError"
    future, _, rest = found["future"].partition("the process group was aborted")
    assert future.count("AbortedError") == 1
    assert "the process group was aborted" not in rest


def test_timeouts_of_groups_and_operations_have_the_meaning_that_gloo_gives_them(tmp_path: Path) -> None:
    found = first_of_ranks("timeouts", tmp_path)
    assert set(found) == {"new_group", "over gloo", "_set_pg_timeout", "options", "hook"}
    assert "imed out" in found.pop("over gloo")
    for error in found.values():
        assert "no result after 0.2 s" in error


@pytest.mark.parametrize(
    "calls",
    [
        pytest.param([("float32", 5000, "SUM"), ("float32", 5000, "MAX")], id="operators"),
        pytest.param([("float32", 5000, "SUM"), ("float64", 5000, "SUM")], id="types"),
        pytest.param([("float32", 5000, "SUM"), ("float32", 6000, "MIN")], id="sizes"),
    ],
)
def test_ranks_that_ask_for_different_operations_have_an_error_that_names_them(tmp_path: Path, calls: Any) -> None:
    for result in ranks("differing", tmp_path, calls=calls):
        assert result["error"] == "the ranks' operations differ: operation 3 of the process group is " + ", ".join(
            f"allreduce {operator} of {elements} {dtype} on rank {rank}"
            for rank, (dtype, elements, operator) in enumerate(calls)
        )


def test_an_operation_after_the_end_of_its_group_has_an_error_instead_of_no_end() -> None:
    """The thread that waits for operations of gloo has ended: nothing would complete the result."""
    follower = Follower("closed")
    follower.close()
    with pytest.raises(AbortedError, match="the process group is closed"):
        follower.then(dist.Work(), lambda: None, None).wait(20.0)


def test_a_group_whose_ranks_shall_change_is_refused(tmp_path: Path) -> None:
    """As torch 2.15 asks for one, with `enable_reconfigure=True` of init_process_group or new_group."""
    opts = SimpleNamespace(store=dist.HashStore(), group_rank=0, group_size=1, group_id="0", enable_reconfigure=True)
    with pytest.raises(ValueError, match=r"enable_reconfigure=True: .* leave it out, or use .*ProcessGroupInArt"):
        create(opts, None)
    if "enable_reconfigure" in inspect.signature(dist.init_process_group).parameters:
        store = f"file://{tmp_path}/store"
        with pytest.raises(ValueError, match="enable_reconfigure=True"):
            dist.init_process_group("inart", init_method=store, rank=0, world_size=1, enable_reconfigure=True)


ENDS = """
import os, sys, threading, torch, torch.distributed as dist, worker_agent.backend
from datetime import timedelta
from worker_agent import MismatchError
from worker_agent.backend import BackendOptions
from worker_agent.torch import presence
presence.LOOK_SECONDS = 0.05
rank, store, agent = int(sys.argv[1]), sys.argv[2], sys.argv[3]
dist.init_process_group("cpu:inart", init_method=f"file://{store}", rank=rank, world_size=2,
                        pg_options=BackendOptions(agent=agent))
child = os.fork()
if child == 0:
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7, "a forked process ends"
try:
    dist.all_reduce(torch.ones(500), dist.ReduceOp.MAX if rank else dist.ReduceOp.SUM)
except MismatchError:
    print("mismatch")
dist.destroy_process_group()
left = [one.name for one in threading.enumerate() if one.name.startswith("inart")]
assert not left, left
sys.exit(3)
"""


def test_processes_end_in_good_order_after_an_error_and_a_fork(tmp_path: Path) -> None:
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", ENDS, str(rank), f"{tmp_path}/store", f"unix:{tmp_path}/w{rank}.sock"],
            cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for rank in (0, 1)
    ]  # fmt: skip
    for process in started:
        output, errors = process.communicate(timeout=SECONDS)
        assert output == "mismatch\n", errors
        assert process.returncode == 3, errors
