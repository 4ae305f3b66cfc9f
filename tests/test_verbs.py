"""The command line stays small: numbers of verbs and of different options, and the list of verbs on one screen."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from importlib import import_module
from unittest import mock

import pytest

from inart.command import PLUGINS, VERBS, Verb, usage

MOST_VERBS, MOST_OPTIONS, MOST_WITH_PLUGINS = 18, 75, 90
SCREEN_LINES, SCREEN_COLUMNS = 24, 80
FORMS = {"deploy": ("", "remove", "cabling")}
"""The first words with which a module makes different parsers. `emulate run` and `emulate generate` are not counted:
their options are those of emulated networks."""


class Parsed(Exception):
    """A parser was asked to parse; its first argument is the parser."""


def parsers(name: str, verb: Verb) -> Iterator[argparse.ArgumentParser]:
    """Yield the parsers of a verb's commands."""

    def parse(self: argparse.ArgumentParser, *_: object, **__: object) -> None:
        raise Parsed(self)

    if verb.extra == "emulation":
        pytest.importorskip("mininet", reason="mininet is not installed")
    for form in FORMS.get(name, ("",)):
        with mock.patch.object(argparse.ArgumentParser, "parse_known_args", parse), pytest.raises(Parsed) as found:
            import_module(verb.module).main([*verb.first, *form.split()])
        parser = found.value.args[0]
        for word in verb.first:
            parser = orders(parser)[word]
        yield from leaves(parser)


def orders(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Return the parsers of a parser's commands, by their names."""
    found = [action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return dict(found[0]) if found else {}


def leaves(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    below = orders(parser)
    for one in below.values():
        yield from leaves(one)
    if not below:
        yield parser


def options(verbs: dict[str, Verb]) -> set[str]:
    """Return the different long options of these verbs."""
    every = {
        option
        for name, verb in verbs.items()
        for parser in parsers(name, verb)
        for action in parser._actions
        for option in action.option_strings
    }
    return {option for option in every if option.startswith("--")} - {"--help"}


def test_there_are_few_verbs_and_options() -> None:
    assert len(VERBS) <= MOST_VERBS
    assert len(own := options(VERBS)) <= MOST_OPTIONS, sorted(own)
    assert {"--topology", "--job", "--listen", "--clear-registers", "--cpu-port", "--watch", "--guarantee"} <= own
    assert len(every := options(VERBS | PLUGINS)) <= MOST_WITH_PLUGINS, sorted(every)


def test_the_list_of_verbs_fits_on_a_screen_and_names_all() -> None:
    lines = usage().splitlines()
    assert len(lines) <= SCREEN_LINES and max(map(len, lines)) <= SCREEN_COLUMNS
    assert [line.split()[0] for line in lines[2 : 2 + len(VERBS)]] == list(VERBS)
    assert all(verb.help for verb in VERBS.values())
    assert all(name in lines[-2] for name in PLUGINS)


@pytest.mark.parametrize(
    ("wanted", "verb"),
    [("plan a job", "plan"), ("install a plan", "deploy"), ("run a training command", "run"), ("stuck", "status"),
     ("check this machine", "doctor"), ("who did what", "log"), ("add, list", "job")],
)  # fmt: skip
def test_the_list_of_verbs_says_how_to_plan_install_run_and_diagnose(wanted: str, verb: str) -> None:
    assert [line.split()[0] for line in usage().splitlines() if wanted in line] == [verb]
