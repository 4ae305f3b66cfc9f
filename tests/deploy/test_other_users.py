"""The doctor's findings about other users of the host, from the rules that the packet filter has loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from controlplane.cli import doctor
from controlplane.common import other_users
from p4src.protocol import GROUP

RULE = f'ip daddr {GROUP} udp dport 20480-24575 meta skuid != "inart" counter packets 3 bytes 99 drop'


def ruleset(rule: str, hook: str = "output") -> str:
    """Return the ruleset as nft prints it, with another chain before and after."""
    chains = [("first", "input", "tcp dport 22 accept"), ("ours", hook, rule), ("last", "output", "accept")]
    return "\n".join(
        f"table inet {name} {{\n\tchain {name} {{\n"
        f"\t\ttype filter hook {where} priority filter; policy accept;\n\t\t{line}\n\t}}\n}}"
        for name, where, line in chains
    )


@pytest.fixture
def nft(tmp_path, monkeypatch):
    """Make an nft that prints this and exits with this status."""

    def install(output: str, status: int = 0) -> None:
        (tmp_path / "output").write_text(output)
        stream = "" if status == 0 else ">&2"
        program = tmp_path / "nft"
        program.write_text(f"#!/bin/sh\n[ \"$*\" = 'list ruleset' ] && cat {tmp_path}/output {stream}\nexit {status}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    return install


def said() -> doctor.Check:
    (found,) = [check for check in doctor.check_interface(None) if check.name == other_users.NAME]
    return found


def test_the_rule_that_is_loaded_is_found_with_the_user_that_it_leaves_the_group_to(nft):
    nft(ruleset(RULE))
    assert said().ok and "anybody but user inart" in said().detail
    nft(ruleset(RULE.replace('"inart"', "997")))
    assert said().ok and "anybody but user 997" in said().detail


@pytest.mark.parametrize(
    "loaded",
    [
        "",
        ruleset("udp dport 53 accept"),
        ruleset(RULE, hook="input"),
        ruleset(RULE.replace("drop", "accept")),
        ruleset(RULE.replace("24575", "20481")),
        ruleset(RULE.replace(str(GROUP), "239.1.1.1")),
    ],
    ids=["empty", "others", "of what comes in", "counts only", "few ports", "another group"],
)
def test_without_such_a_rule_everybody_can_send_and_the_doctor_says_so(nft, loaded):
    nft(loaded)
    assert not said().ok and not said().required
    assert f"every user of this host can send to {GROUP}" in said().detail and "nft -f" in said().fix


def test_rules_that_cannot_be_read_are_no_answer(nft):
    nft("Operation not permitted (you must be root)\nnetlink: Error", status=1)
    assert not said().ok and "unknown: nft list ruleset: Operation not permitted" in said().detail


def test_a_missing_nft_is_reported(monkeypatch):
    monkeypatch.setattr(other_users.shutil, "which", lambda name, path=None: None)
    assert not said().ok and not said().required and "nft is not installed" in said().detail
    assert "apt-get install nftables" in said().fix


def test_the_rule_among_the_services_is_one_that_the_doctor_knows():
    text = Path(doctor.__file__).resolve().parents[2].joinpath(other_users.RULE).read_text()
    (rule,) = [line.strip() for line in text.splitlines() if "daddr" in line]
    assert "hook output" in text
    assert other_users.only_sender(ruleset(rule.replace("counter drop", "counter packets 0 bytes 0 drop"))) == "inart"
