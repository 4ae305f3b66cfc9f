"""Targets are registered in one place, and the command lines accept all of them."""

import pytest

from controlplane.cli.deploy import check_arguments, make_parser
from controlplane.cli.options import DeployError, kind_of
from controlplane.targets import registry
from controlplane.targets.kind import Kind
from controlplane.targets.registry import TARGETS, target


@pytest.mark.parametrize("name", TARGETS)
def test_every_target_can_be_named_and_has_a_program(name: str) -> None:
    option = {"tofino2": ["--tofino", "2"]}.get(name, [f"--{name}"])
    arguments = make_parser().parse_args([*option, "--dry-run", "--topology", "testbed"])
    assert arguments.targets == [name]
    check_arguments(arguments, "")
    assert kind_of(arguments).artifact.manifest.target == target(name).architecture


def test_a_generation_that_there_is_not_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        make_parser().parse_args(["--tofino", "3"])
    assert "wanted: 1 or 2, the chip's generation" in capsys.readouterr().err


def test_several_targets_at_once_are_refused() -> None:
    arguments = make_parser().parse_args(["--bmv2", "--tofino", "--dry-run"])
    with pytest.raises(DeployError, match="bmv2 and tofino exclude each other"):
        check_arguments(arguments, "")


def test_a_new_target_is_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register a third target as a developer would add it: a module with a `Kind`, and its line in the registry."""

    class Third(target("bmv2")):  # type: ignore[misc]
        name = "third"
        help = "switches of a third kind"

    monkeypatch.setattr(registry, "THIRD", Third, raising=False)
    monkeypatch.setitem(TARGETS, "third", f"{registry.__name__}:THIRD")
    arguments = make_parser().parse_args(["--third", "--dry-run", "--topology", "testbed"])
    check_arguments(arguments, "")
    assert issubclass(target("third"), Kind)
    assert kind_of(arguments).artifact.manifest.target == "v1model"
    assert "--third switches of a third kind" in " ".join(make_parser().format_help().split())
