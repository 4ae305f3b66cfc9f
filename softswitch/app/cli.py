"""``softswitch cli``: the commands of bmv2's simple_switch_CLI, from a file, a pipe or a prompt."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from softswitch.app import control, options

PROMPT = "RuntimeCmd: "


def main(arguments: list[str]) -> int:
    """Run the commands, and return the exit status: 1 if a command was refused."""
    parser = argparse.ArgumentParser(
        prog=f"{options.program_name()} cli",
        description="Run commands of bmv2's simple_switch_CLI on a running softswitch.",
        epilog="""examples:
  python -m softswitch cli /tmp/switch.sock commands.txt
  python -m softswitch cli /tmp/switch.sock < commands.txt
  echo "register_read sums 3" | python -m softswitch cli /tmp/switch.sock --device s1""",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("socket", help="path given as --control, or 'control' in the fabric file")
    parser.add_argument("file", nargs="?", type=Path, help="one command per line (default: standard input)")
    parser.add_argument("--device", help="id or name; needed if there are several")
    chosen = parser.parse_args(arguments)
    device = control.device(chosen.device or control.only_device(chosen.socket))
    with control.Connection(chosen.socket) as connection:
        if chosen.file is not None:
            with chosen.file.open(encoding="utf-8") as lines:
                return _run(connection, device, lines, str(chosen.file))
        if sys.stdin.isatty():
            return _run(connection, device, _prompt(), None)
        return _run(connection, device, sys.stdin, "standard input")


def _run(connection: control.Connection, device: int | str, lines: Iterable[str], source: str | None) -> int:
    """Run each line; a line that is refused does not stop the next ones. ``source`` is ``None`` at a prompt."""
    refused = 0
    for number, text in enumerate(lines, 1):
        line = text.strip()
        if line in ("EOF", "exit", "quit"):
            break
        if not line or line.startswith("#"):
            continue
        try:
            answer = connection.call("run", device=device, line=line)
        except control.ControlError as error:
            refused += 1
            sys.stdout.flush()
            place = "" if source is None else f"{source}, line {number}: "
            print(f"{place}Error: {error}", file=sys.stderr, flush=True)
        else:
            for output in answer["lines"]:
                print(output)
    return 1 if refused and source is not None else 0


def _prompt() -> Iterator[str]:
    """Yield the lines that a person types, with a history if Python has readline."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  # It extends input().
    while True:
        try:
            yield input(PROMPT)
        except EOFError:
            print()
            return
        except KeyboardInterrupt:
            print()
