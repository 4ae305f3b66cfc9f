"""Helpers for command lines: parsers of the verbs of `inart`, their exit status, and checked option values."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

Value = TypeVar("Value")


def make(name: str, description: str | None = "") -> argparse.ArgumentParser:
    """Return the parser of `inart NAME`, whose help shows the description as it is written."""
    return argparse.ArgumentParser(
        prog=f"inart {name}".rstrip(), description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def add_json(parser: argparse.ArgumentParser | argparse._ArgumentGroup, what: str = "print JSON") -> None:
    """Add the option --json, with which a command prints JSON on standard output instead of text."""
    parser.add_argument("--json", action="store_true", help=what)


def program(words: list[str]) -> list[str]:
    """Return a program's command line from what follows a command's own options, with the "--" or without it."""
    return words[1:] if words[:1] == ["--"] else words


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


def failed(error: Exception) -> int:
    """Return the exit status after an error: 2 for unusable input (ValueError), 1 for all others."""
    return 2 if isinstance(error, ValueError) else 1


def run(name: str, work: Callable[[], object], errors: tuple[type[Exception], ...], after_interrupt: str = "") -> int:
    """Run a command's work and return its exit status: 0, `failed(error)` after one of these errors, 130 after Ctrl-C.

    The error is printed on standard error, after the command's name if one is given.
    """
    prefix = f"{name}: " if name else ""
    try:
        work()
        flush()
    except BrokenPipeError:
        end_output()
    except errors as error:
        print(f"{prefix}{error}", file=sys.stderr)
        return failed(error)
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
