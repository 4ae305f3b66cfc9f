"""Infinities and NaN through the hook and the backend: each value is that of IEEE addition, and other values are not
affected.
"""

from __future__ import annotations

import pytest

from tests.hook.masked import STEPS
from tests.hook.test_training import run_ranks, start_agents
from tests.support.examples import nightly


@pytest.mark.namespaces
@pytest.mark.parametrize(
    ("scenario", "dtype"),
    [
        nightly("masked_hook", "float32"),
        ("masked_hook", "bfloat16"),
        ("masked_backend", "float32"),
        nightly("masked_backend", "bfloat16"),
    ],
)
def test_each_value_of_masked_logits_equals_ieee_addition(network, tmp_path, scenario, dtype):
    network.run_server()
    for result in run_ranks(scenario, tmp_path, start_agents(network), dtype=dtype):
        assert result["wrong"] == []
        assert result["in_network"] and result["steps"] >= STEPS and result["falls"] == 0
    assert network.switch.verdicts()["completed"] > 0
