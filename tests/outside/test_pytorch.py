"""A part of PyTorch's own distributed suite over our backend; ``python -m tests.outside.pytorch`` runs all of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PART = (
    "test_all_reduce_sum,test_all_reduce_full_group_sum,test_all_gather_full_group,test_broadcast,test_reduce_scatter*,"
    "test_barrier_full_group,test_scatter_full_group,test_send_recv,test_get_future,test_ddp_comm_hook_logging,"
    "test_ddp_grad_div_uneven_inputs,test_monitored_barrier_gloo_rank_0_timeout,test_destroy_full_group,"
    "test_DistributedDataParallelCPU,test_grads_same_across_ranks_with_no_sync,test_all_gather_object_default_pg,"
    "test_sparse_all_reduce_sum"
)
THROUGH = ("test_all_reduce_sum", "test_all_gather_full_group", "test_broadcast", "test_DistributedDataParallelCPU")


@pytest.mark.namespaces
@pytest.mark.timeout(400)
def test_a_part_of_pytorchs_suite_passes_through_the_switch():
    if os.geteuid() != 0:
        pytest.skip("needs root: network namespaces")
    pytest.importorskip("expecttest", reason="torch.testing needs expecttest: pip install -r requirements.txt")
    command = [sys.executable, "-m", "tests.outside.pytorch", "--only", PART, "--json"]
    # It runs in a process of its own because the suite reads the environment when it is imported.
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=380, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout)
    assert found["passed"] >= 13, found
    assert "different" not in found
    through = {test["name"]: test["through"] for test in found["tests"]}
    assert all(through[name] > 0 for name in THROUGH), "they went through the switch"
