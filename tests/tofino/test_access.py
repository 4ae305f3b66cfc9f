"""BRI over TLS, as with a proxy in front of bf_switchd: a client without a certificate of ours writes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from controlplane.cli.certificates import Wanted, make
from controlplane.common.rpc.tls import credentials
from controlplane.targets import fabric
from controlplane.targets.base import SwitchAddress, TargetError, difference
from controlplane.targets.bri.ledger import Ledger
from controlplane.targets.bri.ports import Panel
from controlplane.targets.bri.program import Program
from controlplane.targets.bri.target import BriTarget
from tests.tofino.conftest import BFRT
from tests.tofino.plans import deployment
from tests.tofino.switch import TofinoSwitch

SWITCHES = (("127.0.0.1:9559", ("V1",)), ("127.0.0.1:9560", ("V2",)))
WANTED = Wanted(controller=("127.0.0.1",), nodes=("w1",), switches=SWITCHES)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    made = tmp_path_factory.mktemp("certificates")
    make(made / "ours", WANTED)
    make(made / "theirs", WANTED)
    return made


@pytest.mark.parametrize("who", ["ours", "theirs", "a worker", "nobody", "another switch"])
def test_only_the_controllers_certificate_gets_in(who, folder, client, topology, tmp_path):
    tls = {
        "ours": credentials(folder / "ours/controller-of-switches"),
        "theirs": credentials(folder / "theirs/controller-of-switches"),
        "a worker": credentials(folder / "ours/nodes/w1"),
        "nobody": None,
        "another switch": credentials(folder / "ours/controller-of-switches"),
    }[who]
    server = TofinoSwitch(BFRT, tls=credentials(folder / "ours/switches" / ("V2" if who == "another switch" else "V1")))
    panel, ledger = Panel.of(topology, "V1"), Ledger("V1", 0, tmp_path / "ports.json")
    target = BriTarget(
        SwitchAddress("V1", server.address, 0, tls), Program.load(BFRT), client, panel=panel, ledger=ledger
    )
    rules = {"V1": deployment(topology).rulesets["V1"]}
    try:
        if who == "ours":
            fabric.connect([target], 10.0)
            fabric.install([target], rules)
            assert difference(target.read(), rules["V1"]) == []
            return
        with pytest.raises((TargetError, fabric.FabricError)):
            fabric.connect([target], 1.5)
        assert server.snapshot() == {}
    finally:
        target.close()
        server.stop()
