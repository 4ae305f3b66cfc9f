"""A docstring makes sense to somebody who has read nothing else (CONTRIBUTING.md, "Language"). A sentence that begins
with one of these words goes on with another sentence, which the reader has not seen.
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FRAGMENT = re.compile(
    r"(Of|Than|As|So|And|Or|But|Nor|Until|Between|Those|Who|Whose|Which|Has|That|At once|"
    r"What|How|Where|Nothing|Everything|All that)\b"
)


def fragments(source: str) -> Iterator[tuple[int, str]]:
    """Lines and beginnings of docstrings, of modules, classes, functions and attributes, that are no sentences."""
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", None)
        for one in body if isinstance(body, list) else []:  # of a lambda it is no list
            if isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant) and isinstance(one.value.value, str):
                words = " ".join(one.value.value.split())
                if FRAGMENT.match(words):
                    yield one.lineno, words[:80]


def test_docstrings_stand_alone() -> None:
    """To mend: begin with what it is, "Most bytes of .."; of a function with what it does, "Return the bytes of .."."""
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    found = [
        f"{file}:{line}: {words}"
        for file in listed.split()
        if "tests" not in Path(file).parts and not file.endswith("_pb2.py") and (ROOT / file).exists()
        for line, words in fragments((ROOT / file).read_text())
    ]
    assert not found, "\n".join(found)


def test_fragments_are_found() -> None:
    assert list(fragments('MOST = 1\n"""Of one page."""\n')) == [(2, "Of one page.")]
    assert list(fragments('def f():\n    """How long it waits."""\n')) == [(2, "How long it waits.")]
    assert list(fragments('def f():\n    """As `g`, later."""\n')) == [(2, "As `g`, later.")]
    assert not list(fragments('def f():\n    """Return the most bytes of one page."""\n'))
