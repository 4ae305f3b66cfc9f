"""p4lang's tutorials work over softswitch, where there is a copy of them ($INART_TUTORIALS)."""

from __future__ import annotations

import pytest

from tests.outside import tutorials, tutorials_ptf
from tests.outside.copies import copy_in


@pytest.mark.namespaces
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", tutorials.EXERCISES)
def test_every_exercise_works_over_softswitch(name):
    outcome = tutorials.run(name, copy_in("INART_TUTORIALS", "p4lang/tutorials", tutorials.missing))
    assert outcome.passed, outcome.reason


@pytest.mark.namespaces
@pytest.mark.timeout(600)
def test_the_ptf_tests_of_the_exercises_pass_over_softswitch():
    folder = copy_in("INART_TUTORIALS", "p4lang/tutorials", tutorials_ptf.missing)
    names = tutorials_ptf.exercises(folder)
    assert names
    assert {name: reason for name in names if (reason := tutorials_ptf.run(name, folder).reason)} == {}


def test_a_folder_that_is_no_copy_is_said_to_be_none(tmp_path):
    assert "has no exercises" in tutorials.missing(tmp_path)
    assert "has no exercises" in tutorials_ptf.missing(tmp_path)
