"""What the command lines have in common: a command is called what was typed, and says what a value must be."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable
from typing import TypeVar

Value = TypeVar("Value")
OURS = re.compile(r"python -m controlplane\.(\w+)")
"""A module that is a verb of `inart`, or, of the controller's, whose orders are (job, status, replan)."""


def typed(module: str) -> str:
    """`inart deploy` where that was typed (inart/command.py says so), else `python -m controlplane.deploy`."""
    name = sys.argv[0]
    return name if name == "inart" or name.startswith("inart ") else f"python -m {module}"


class Parser(argparse.ArgumentParser):
    """Its help calls commands as this one was typed; so do its orders' parsers."""

    def format_help(self) -> str:
        words = super().format_help()
        if not self.prog.startswith("inart"):
            return words
        return OURS.sub(lambda found: "inart" if found[1] == "controller" else f"inart {found[1]}", words)


def make(module: str, description: str | None = "", order: str = "") -> argparse.ArgumentParser:
    """The parser of a module that is run, or of one of its orders. description: as the module begins."""
    name, words = typed(module), (description or "").replace(f"python -m {module}", typed(module))
    prog = f"{name} {order}".rstrip()
    return Parser(prog=prog, description=words, formatter_class=argparse.RawDescriptionHelpFormatter)


def end_output() -> None:
    """For `except BrokenPipeError`: whoever reads has seen enough, and what is still to be written, also when the
    process ends, goes nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def value(parse: Callable[[str], Value]) -> Callable[[str], Value]:
    """`type=` of an option whose values `parse` reads; the words of its ValueError are the user's."""

    def read(text: str) -> Value:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return read


def whole(least: int, most: int | None = None, what: str = "a whole number", base: int = 10) -> Callable[[str], int]:
    """`type=` of a whole number in a range. what: how it is called where it is none."""

    def read(text: str) -> int:
        try:
            number = int(text, base)
        except ValueError:
            number = None
        if number is None or number < least or (most is not None and number > most):
            raise argparse.ArgumentTypeError(f"got {text!r}; wanted: {what}")
        return number

    return read
