"""An exercise of p4lang's tutorials works over softswitch, where there is a copy of them ($INART_TUTORIALS)."""

from __future__ import annotations

import pytest

from tests.outside import tutorials
from tests.outside.copies import copy_in


@pytest.mark.namespaces
@pytest.mark.timeout(600)
def test_the_first_exercise_pings_over_softswitch():
    outcome = tutorials.run("basic", copy_in("INART_TUTORIALS", "p4lang/tutorials", tutorials.missing))
    assert outcome.passed, outcome.reason


def test_a_folder_that_is_no_copy_is_said_to_be_none(tmp_path):
    assert "has no exercises" in tutorials.missing(tmp_path)
