"""Helpers for command lines: parsers that name the command as the user typed it, and checked option values."""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

Value = TypeVar("Value")
FORMS = ("json", "text")
OURS = re.compile(r"python -m controlplane\.(\w+)")
"""Matches the command of a module that is also a command of `inart` (job, status and replan are the controller's)."""


def typed(module: str) -> str:
    """Return "inart deploy" if the user typed that (inart/command.py sets argv), else "python -m controlplane..."."""
    name = sys.argv[0]
    return name if name == "inart" or name.startswith("inart ") else f"python -m {module}"


class Parser(argparse.ArgumentParser):
    """A parser whose help names commands in the form that the user typed, as the parsers of its subcommands do."""

    def format_help(self) -> str:
        words = super().format_help()
        if not self.prog.startswith("inart"):
            return words
        return OURS.sub(lambda found: "inart" if found[1] == "controller" else f"inart {found[1]}", words)


def make(module: str, description: str | None = "", order: str = "") -> argparse.ArgumentParser:
    """Return the parser of a module that is run, or of one of its commands. `description` is the module's docstring."""
    name, words = typed(module), (description or "").replace(f"python -m {module}", typed(module))
    prog = f"{name} {order}".rstrip()
    return Parser(prog=prog, description=words, formatter_class=argparse.RawDescriptionHelpFormatter)


def program(words: list[str]) -> list[str]:
    """Return a program's command line from what follows a command's own options, with the "--" or without it."""
    return words[1:] if words[:1] == ["--"] else words


class _Output(argparse.Action):
    """Sets `json` for "json" and "text". Any other value is a file, where the command writes one."""

    file: Callable[[str], Any] | None = None

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        if values in FORMS:
            namespace.json = values == "json"
        elif self.file is not None:
            namespace.output = self.file(values)
        else:
            parser.error(f"argument --output: got {values!r}; wanted: {' or '.join(FORMS)}")


def add_output(
    parser: argparse.ArgumentParser | argparse._ArgumentGroup,
    what: str = "print JSON",
    file: Callable[[str], Any] | None = None,
    of_file: str = "",
) -> None:
    """Add `--output json` and its short form `--json`, which set `json`.

    Args:
        file: makes the value of `output` from a file's name, for a command that takes one, too (a file that is called
            json is ./json).
    """
    metavar = "json|text" if file is None else "json|FILE"
    more = f"; {of_file}" if of_file else " (default: text)"
    option = parser.add_argument("--output", action=_Output, metavar=metavar, help=f"{what}{more}")
    assert isinstance(option, _Output), "it was made with this class"
    option.file = file
    parser.add_argument("--json", action="store_true", help="short for --output json")


def end_in_order() -> None:
    """Have SIGTERM raise SystemExit in the main thread, so that the networks that this process has made are removed."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))


def flush() -> None:
    """Write what was printed, so that an error with which it cannot be written is seen. Nothing is written where
    standard output is closed (`>&-`), which is no error, as `print` has it."""
    print(end="", flush=True)


def end_output() -> None:
    """Discard all further output, including that at exit, after a BrokenPipeError, which means that the reader has
    closed the pipe."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def run(
    name: str, work: Callable[[], object], errors: tuple[type[Exception], ...], usage: tuple[type[Exception], ...] = (),
    after_interrupt: str = "",
) -> int:  # fmt: skip
    """Do a command's work, and return its exit status: 0, 1 after one of these errors, 2 after one of `usage`, and 130
    after Ctrl-C. What was wrong is printed on standard error, behind the command's name where one is given."""
    prefix = f"{name}: " if name else ""
    try:
        work()
        flush()
    except BrokenPipeError:
        end_output()
    except (*errors, *usage) as error:
        print(f"{prefix}{error}", file=sys.stderr)
        return 2 if isinstance(error, usage) else 1
    except KeyboardInterrupt as interrupt:
        hint = str(interrupt) or after_interrupt
        print(f"{prefix}interrupted{f'; {hint}' if hint else ''}", file=sys.stderr)
        return 130
    return 0


def new_file(text: str) -> Path:
    """Return the path of a file that the command writes at its end, which may be minutes away. Raise
    argparse.ArgumentTypeError where it cannot be written there.
    """
    path = Path(text)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{path} is a folder: name a file")
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {path.parent}: make it first")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"{path} cannot be written: name a file elsewhere")
    return path


def value(parse: Callable[[str], Value]) -> Callable[[str], Value]:
    """Return a `type=` for an option whose values `parse` reads; the message of its ValueError goes to the user."""

    def read(text: str) -> Value:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return read


def whole(least: int, most: int | None = None, what: str = "a whole number", base: int = 10) -> Callable[[str], int]:
    """Return a `type=` for a whole number from `least` to `most`. `what` are the words for it in the error message."""

    def read(text: str) -> int:
        try:
            number = int(text, base)
        except ValueError:
            number = None
        if number is None or number < least or (most is not None and number > most):
            raise argparse.ArgumentTypeError(f"got {text!r}; wanted: {what}")
        return number

    return read
