"""Properties of all command lines: a command's messages name it, and say for a wrong value what it must be."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from inart.command import PLUGINS, VERBS
from inart.command import main as inart


def usage(run, capsys) -> str:
    with pytest.raises(SystemExit):
        run()
    return capsys.readouterr().out


@pytest.mark.parametrize("verb", [*VERBS, *PLUGINS])
def test_a_verbs_help_calls_it_inart(verb: str, capsys) -> None:
    words = usage(lambda: inart([verb, "--help"]), capsys)
    assert words.startswith(f"usage: inart {verb} ")
    assert "python -m controlplane" not in words


@pytest.mark.parametrize("words", ["status", "topology reload", "job add", "log", "drain s1", "replan"])
def test_a_command_without_a_controller_shows_its_own_usage(words: str, monkeypatch, capsys) -> None:
    monkeypatch.delenv("INART_CONTROLLER", raising=False)
    with pytest.raises(SystemExit) as end:
        inart(words.split())
    said = capsys.readouterr().err
    command = words.removesuffix(" s1")
    assert end.value.code == 2
    assert said.startswith(f"usage: inart {command} [-h] ") and f"inart {command}: error: " in said


@pytest.mark.parametrize("name", ["plan", "deploy"])
def test_scripts_may_call_two_verbs_as_modules(name: str, capsys) -> None:
    main = importlib.import_module(f"controlplane.{name}").main
    assert usage(lambda: main(["--help"]), capsys).startswith(f"usage: inart {name} ")


def test_scripts_may_call_the_comparison_of_strategies_compare(capsys) -> None:
    words = ["--topology", "testbed", "--strategy", "lbmm"]
    assert inart(["compare", *words]) == inart(["plan", "--compare", *words]) == 0
    heads = [line for line in capsys.readouterr().out.splitlines() if line.startswith("strategy ")]
    assert len(heads) == 2


@pytest.mark.parametrize(
    ("module", "words", "said"),
    [
        ("worker_agent", "serve --config nosuch.toml", "--config: cannot read nosuch.toml: No such file"),
        ("worker_agent", "allreduce --bytes 3Q", "a size is a number with K, M, G"),
        ("evaluation.hosts", "--workers 4;8", "numbers with commas between them are wanted"),
        ("evaluation.sharded", "--bytes x", "a size is a number with K, M, G"),
        ("overlay", "coordinator --p x", "'x' is no number above 0"),
        ("softswitch", "--priority-queues many", "there may be 1 to 8, got 'many'"),
    ],
)
def test_the_message_for_a_wrong_value_says_what_it_must_be(module: str, words: str, said: str, capsys) -> None:
    with pytest.raises(SystemExit) as end:
        importlib.import_module(f"{module}.__main__").main(words.split())
    assert end.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    "command",
    [
        "plan --topology nosuch --job workers=2,ps=1",
        "plan --topology testbed --job nosuch.json",
        "plan --topology testbed --job workers=99,ps=1",
        "simulate --topology nosuch --plan nosuch.json",
        "deploy --topology nosuch --job workers=2,ps=1 --dry-run",
        "deploy --topology testbed --job workers=99,ps=1 --dry-run",
        "deploy --topology testbed --job workers=2,ps=1 --bmv2 --switches nosuch.json",
        "deploy remove --bmv2 --switches nosuch.json",
        "serve --no-state --topology nosuch --bmv2 --switches nosuch.json --listen 127.0.0.1:0",
        "serve --no-state --topology testbed --bmv2 --switches nosuch.json --listen 127.0.0.1:0",
        "emulate generate --topology nosuch",
        "topology import nosuch.graphml",
        "certificates --folder nosuch --renew alice",
        "job add --controller nowhere",
        "overlay coordinator --topology nosuch --job workers=2",
    ],
)
def test_unusable_input_ends_every_command_with_the_same_status(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("INART_CREDENTIALS", raising=False)
    try:
        status = inart(command.split())
    except SystemExit as end:  # argparse
        status = end.code
    assert status == 2
    assert capsys.readouterr().err.strip()
