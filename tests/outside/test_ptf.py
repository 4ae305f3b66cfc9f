"""p4c's PTF runner works over softswitch, where there is a copy of p4c's source ($INART_P4C)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.outside import ptf


@pytest.mark.namespaces
@pytest.mark.timeout(600)
def test_the_samples_with_ptf_tests_pass_over_softswitch():
    folder = os.environ.get("INART_P4C")
    if folder is None:
        pytest.skip("INART_P4C names no copy of p4c's source")
    if why := ptf.missing(Path(folder)):
        pytest.skip(why)
    outcomes = [ptf.run(program, Path(folder)) for program in ptf.programs(Path(folder))]
    assert outcomes
    assert [one.reason for one in outcomes if one.reason] == []


def test_a_folder_that_is_not_p4c_is_said_to_be_none(tmp_path):
    assert "give p4c's source" in ptf.missing(tmp_path)
