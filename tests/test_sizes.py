"""No class and no function, of Python or C, is larger than somebody can hold in mind. `python -m tests.test_sizes`
prints what is over a limit now.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
METHODS, CLASS_LINES, FUNCTION_LINES, PARAMETERS = 25, 300, 60, 8
"""The most that a class, or a function, may have."""

POSITIONAL, OPTIONS = 4, 12
"""The most parameters that a public call with options (PUBLIC) may have: by position, and by keyword."""

PUBLIC = {
    "overlay/net/coordinator.py:Coordinator.__init__",
    "overlay/sites/group.py:init",
    "overlay/sites/optimisers.py:StreamingDiLoCo.__init__",
    "worker_agent/agent.py:connect",
    "worker_agent/torch/hook.py:InArtState.__init__",
}
"""Public calls with options that are given by keyword only: what users write in their scripts, where each option is one
more word with a default, as in PyTorch's DistributedDataParallel. A call within the package has no place here."""

Over = dict[str, dict[str, int]]
"""By "file:name", what is over its limit, and how much there is of it."""


def docstring_lines(one: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the lines of a class's or function's own docstring, which do not count, as in C the comment before a
    function does not: who explains each parameter must not have to divide the code for it.
    """
    first = one.body[0]
    if ast.get_docstring(one, clean=False) is None or first.end_lineno is None:
        return 0
    return first.end_lineno - first.lineno + 1


def sizes(source: str) -> dict[str, dict[str, int]]:
    """What is over a limit in a module, by the name of the class or function."""
    found: dict[str, dict[str, int]] = {}

    def note(name: str, what: str, count: int, most: int) -> None:
        if count > most:
            found.setdefault(name, {})[what] = count

    def visit(node: ast.AST, within: str) -> None:
        for one in ast.iter_child_nodes(node):
            name = within
            if isinstance(one, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                name = f"{within}.{one.name}".lstrip(".")
                lines = (one.end_lineno or one.lineno) - one.lineno + 1 - docstring_lines(one)
            if isinstance(one, ast.ClassDef):
                note(name, "lines", lines, CLASS_LINES)
                methods = [each for each in one.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
                note(name, "methods", len(methods), METHODS)
            elif isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef):
                note(name, "lines", lines, FUNCTION_LINES)
                given = [*one.args.posonlyargs, *one.args.args, *one.args.kwonlyargs]
                parameters = [each.arg for each in given if each.arg not in ("self", "cls")]
                note(name, "parameters", len(parameters), PARAMETERS)
            visit(one, name)

    visit(ast.parse(source), "")
    return found


def c_functions(source: str) -> dict[str, int]:
    """The functions of a C file and their lines. The file is as .clang-format has it: only what ends at a `}` in the
    first column is a function, a type or a table.
    """
    found: dict[str, int] = {}
    lines = source.splitlines()
    start = 0
    for at, line in enumerate(lines):
        if line[:1].isalpha() and not re.fullmatch(r"\w+:", line):  # not a label
            start = at
        if line == "}":
            head = " ".join(lines[start:at]).partition("{")[0]
            name = re.search(r"(\w+)\(", head)
            if name is not None and "=" not in head:
                found[name[1]] = at - start + 1
    return found


def keywords(source: str, name: str) -> tuple[int, int]:
    """How many parameters of a method ("Class.method") or function are given by position, and how many by keyword."""
    body: list[ast.stmt] = ast.parse(source).body
    for each in name.split("."):
        one = next(node for node in body if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == each)
        body = one.body
    assert isinstance(one, ast.FunctionDef)
    positional = [each.arg for each in (*one.args.posonlyargs, *one.args.args) if each.arg not in ("self", "cls")]
    return len(positional), len(one.args.kwonlyargs)


def over() -> Over:
    """What is over a limit in the whole tree, but for tests and what is generated."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py", "*.c", "*.h"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    found: Over = {}
    for file in listed:
        path = ROOT / file
        if "tests" in path.relative_to(ROOT).parts or file.endswith("_pb2.py") or not path.exists():
            continue
        if file.endswith(".py"):
            for name, what in sizes(path.read_text()).items():
                if f"{file}:{name}" in PUBLIC:
                    what.pop("parameters", None)
                if what:
                    found[f"{file}:{name}"] = what
        else:
            functions = c_functions(path.read_text()).items()
            found |= {f"{file}:{name}": {"lines": lines} for name, lines in functions if lines > FUNCTION_LINES}
    return found


def test_nothing_is_over_a_limit() -> None:
    """To mend: divide it."""
    assert not over(), "these are too large: divide them"


def test_public_calls_have_options_by_keyword() -> None:
    for each in PUBLIC:
        file, name = each.split(":")
        positional, options = keywords((ROOT / file).read_text(), name)
        assert positional <= POSITIONAL and options <= OPTIONS, each
        assert positional + options > PARAMETERS, f"{each} is within the limit: it needs no exception"


def test_all_python_has_one_format() -> None:
    """To mend: make format."""
    words = [sys.executable, "-m", "ruff", "format", "--check", "--quiet", "."]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[:2000]


def test_limits_are_counted_as_a_reader_counts() -> None:
    body = "\n".join(f"    def f{n}(self): pass" for n in range(METHODS + 1))
    assert sizes(f"class A:\n{body}\n") == {"A": {"methods": METHODS + 1}}
    names = ", ".join(f"p{n}" for n in range(PARAMETERS))
    assert not sizes(f"class A:\n    def f(self, {names}): pass\n")
    assert sizes(f"def f(more, {names}): pass\n") == {"f": {"parameters": PARAMETERS + 1}}
    code = "    a = 1\n" * FUNCTION_LINES
    assert sizes("def f():\n" + code) == {"f": {"lines": FUNCTION_LINES + 1}}
    assert sizes('def f():\n    """Explain.\n\n    Args:\n    """\n' + code) == {"f": {"lines": FUNCTION_LINES + 1}}


def test_functions_of_c_are_counted_as_a_reader_counts() -> None:
    body = "    a = 1;\n" * FUNCTION_LINES
    one = "static int one(struct a *x, int y,\n               int z) {\n" + body + "}\n"
    table = "static const struct b all[] = {\n" + "    {1},\n" * 100 + "};\n"
    kind = "struct c {\n" + "    int a;\n" * 100 + "};\n"
    assert c_functions(table + kind + one + "void two(void) {\n}\n") == {"one": FUNCTION_LINES + 3, "two": 2}


if __name__ == "__main__":
    for name_, what_ in sorted(over().items()):
        print(f'    "{name_}": {what_},'.replace("'", '"'))
