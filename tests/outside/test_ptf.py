"""p4c's PTF runner works over softswitch, where there is a copy of p4c's source ($INART_P4C)."""

from __future__ import annotations

import pytest

from tests.outside import ptf
from tests.outside.copies import copy_in


@pytest.mark.namespaces
@pytest.mark.timeout(600)
@pytest.mark.parametrize("nanomsg", [False, True], ids=["interfaces", "nanomsg"])
def test_the_samples_with_ptf_tests_pass_over_softswitch(nanomsg):
    folder = copy_in("INART_P4C", "p4c's source", lambda copy: ptf.missing(copy, nanomsg))
    outcomes = [ptf.run(program, folder, nanomsg) for program in ptf.programs(folder)]
    assert outcomes
    assert [one.reason for one in outcomes if one.reason] == []


def test_a_folder_that_is_not_p4c_is_said_to_be_none(tmp_path):
    assert "give p4c's source" in ptf.missing(tmp_path)
