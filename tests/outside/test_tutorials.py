"""p4lang's tutorials work over softswitch, where there is a copy of them ($INART_TUTORIALS)."""

from __future__ import annotations

import pytest

from tests.outside import tutorials, tutorials_ptf
from tests.outside.copies import copy_in


@pytest.mark.namespaces
@pytest.mark.timeout(600)
def test_the_first_exercise_pings_over_softswitch():
    outcome = tutorials.run("basic", copy_in("INART_TUTORIALS", "p4lang/tutorials", tutorials.missing))
    assert outcome.passed, outcome.reason


@pytest.mark.namespaces
@pytest.mark.timeout(600)
def test_the_ptf_tests_of_the_first_exercise_pass_over_softswitch():
    outcome = tutorials_ptf.run("basic", copy_in("INART_TUTORIALS", "p4lang/tutorials", tutorials_ptf.missing))
    assert outcome.reason == ""


def test_a_folder_that_is_no_copy_is_said_to_be_none(tmp_path):
    assert "has no exercises" in tutorials.missing(tmp_path)
    assert "has no exercises" in tutorials_ptf.missing(tmp_path)
