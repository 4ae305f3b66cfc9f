"""p4testgen's tests of our Tofino program pass on our model of it, which other tests take for the chip.

`python -m tests.outside.testgen_tofino --values 4 --write` makes the tests in tests/p4/generated again.
"""

from __future__ import annotations

import pytest

from tests.outside.testgen_tofino import FILE, Added, differences, on_model

VALUES = 4
TESTS = dict(part.split("\n", 1) for part in FILE.read_text().split("# ") if part)
FRAME = "0127607d921a00000000000008004500" + "00" * 40
BRIDGE = "add InartIngress.bridge.bridge_table 1 destination:0b*******1{} ingress_port:0b{} InartIngress.bridge.{}\n"


@pytest.mark.parametrize("name", TESTS)
def test_what_leaves_is_what_p4testgen_expects(name: str) -> None:
    assert differences(TESTS[name], on_model(VALUES)) == []


@pytest.mark.parametrize(
    "test, problem",
    [
        (f"packet 3 {FRAME}\nexpect 5 {FRAME}$\n", "nothing left port 5"),
        (BRIDGE.format("*" * 40, "*******11", "bridge(port:0x005)") + f"packet 3 {FRAME}\n", f"port 5: {FRAME} left"),
        (BRIDGE.format("*" * 40, "*******11", "bridge(port:0x005)") + f"packet 3 {FRAME}\nexpect 5 01**$\n", "as 01**"),
        (BRIDGE.format("*" * 40, "*******11", "bridge(port:0x005)") + f"packet 3 {FRAME}\nexpect 5 {FRAME}$\n", ""),
        (BRIDGE.format("*" * 40, "*******10", "bridge(port:0x005)") + f"packet 3 {FRAME}\n", ""),
        (BRIDGE.format("*" * 40, "*" * 9, "bridge(port:0x1FF)") + f"packet 3 {FRAME}\n", ""),
    ],
)
def test_a_difference_is_said(test: str, problem: str) -> None:
    found = "; ".join(differences(test, on_model(VALUES)))
    assert problem in found if problem else not found


def test_an_entry_is_read_with_its_names_last_parts() -> None:
    read = Added.read("add A.b.label_table ingress_port:0x0B3 hdr.inart.label:0xA5 A.b.forward(port:0x1FF)")
    assert read == Added("label_table", {"ingress_port": "0x0B3", "label": "0xA5"}, "forward", {"port": 0x1FF})
    with pytest.raises(ValueError, match="not an entry: fly"):
        Added.read("fly 1")
