"""An exercise of p4lang's tutorials works over softswitch, where there is a copy of them ($INART_TUTORIALS)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.outside import tutorials


@pytest.mark.namespaces
@pytest.mark.timeout(600)
def test_the_first_exercise_pings_over_softswitch():
    folder = os.environ.get("INART_TUTORIALS")
    if folder is None:
        pytest.skip("INART_TUTORIALS names no copy of p4lang/tutorials")
    if why := tutorials.missing(Path(folder)):
        pytest.skip(why)
    outcome = tutorials.run("basic", Path(folder))
    assert outcome.passed, outcome.reason


def test_a_folder_that_is_no_copy_is_said_to_be_none(tmp_path):
    assert "has no exercises" in tutorials.missing(tmp_path)
