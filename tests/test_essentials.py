"""The lists of tests in tests/conftest.py name tests that exist."""

import ast
from pathlib import Path

import pytest

from tests.conftest import LONG, QUICK


@pytest.mark.parametrize("file", dict.fromkeys((*QUICK, *LONG)))
def test_the_list_names_tests_that_there_are(file: str) -> None:
    path = Path(__file__).parent / file
    assert path.is_file(), f"{file} is not there any more: tests/conftest.py"
    tests = [node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)]
    for start in QUICK.get(file, ()):
        assert any(name.startswith(start or "test_") for name in tests), f"{file} has no test {start}..."
