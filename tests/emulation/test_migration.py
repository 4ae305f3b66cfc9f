"""The plan changes while gradients are being summed: nothing stops, and every sum is right."""

import threading

import pytest

from controlplane.cli.controller import main
from controlplane.common.rpc import inart_pb2 as pb
from controlplane.common.rpc.client import REPLAN_SECONDS, ask
from controlplane.planner.generators import fattree
from tests.emulation.rig import Rig, paper_testbed
from tests.emulation.test_allreduce import SIZE, rate

pytestmark = pytest.mark.usefixtures("patient")


def change(rig: Rig, **request: object) -> tuple[threading.Thread, list[pb.ReplanReply]]:
    """Ask for a new plan; the answer comes when the old one is removed."""
    answers: list[pb.ReplanReply] = []
    message = pb.ReplanRequest(**request)
    arguments = rig.service.address, "replan", message, None, REPLAN_SECONDS
    thread = threading.Thread(target=lambda: answers.append(ask(*arguments)))
    thread.start()
    return thread, answers


def test_plan_changes_under_a_running_job(kind: str) -> None:
    full = rate(kind)
    states = (
        [f"V1.aggregation_mbps={full / 3}"],
        [f"V1-V2.used_bandwidth_mbps={full / 2}"],
        [f"V1.aggregation_mbps={full}", "V1-V2.used_bandwidth_mbps=0", f"V2.aggregation_mbps={full / 6}"],
    )
    with Rig(kind, paper_testbed(full), "inart") as rig:
        rig.start_all()
        epoch = rig.service.roster.epoch
        for number, changes in enumerate(states, start=2):
            rig.submit(SIZE if kind == "softswitch" else SIZE // 4)
            thread, answers = change(rig, changes=changes)
            rig.collect().check()
            rig.allreduce(SIZE // 4).check()  # Some workers may be an operation ahead: they all meet in this one.
            thread.join(60)
            assert answers[0].outcome == "updated"
            assert answers[0].version == number
            assert answers[0].rate_mbps > answers[0].rate_before_mbps
            assert answers[0].epoch > epoch
            epoch = answers[0].epoch
            rig.allreduce(SIZE // 8).check()
        # Only one version is on the switches, and it is the one that the agents use.
        keepers = {keeper.target.name: keeper for keeper in rig.service.network.switches.keepers}
        for target in rig.fabric.targets:
            assert {e.label for e in target.read().labels} == {e.label for e in keepers[target.name].rules.labels}
        verdicts = rig.verdicts()
        assert verdicts["refused"] == verdicts["malformed"] == verdicts["unknown"] == 0
        assert not any("gave up" in line or "is gone" in line for line in rig.log)


def test_switch_is_taken_out_of_service_under_a_running_job(capfd: pytest.CaptureFixture[str]) -> None:
    """The switch is replaced as an operator does it: plan without it, migrate, switch it off."""
    with Rig("softswitch", fattree(4, 30.0, aggregation_mbps=30.0), "inart", workers=6, roots=2) as rig:
        rig.start_all()
        carrying = {relay.node for tree in rig.plan.trees for relay in tree.relays}
        hosts = {rig.topology.access_switch(node) for node in (*rig.job.workers, *rig.job.parameter_servers)}
        switch = sorted(carrying - hosts)[0]
        rig.submit(SIZE // 2)
        address = rig.service.address
        answers: list[int] = []
        command = ["replan", "--controller", address, "--without", switch]
        thread = threading.Thread(target=lambda: answers.append(main(command)))
        thread.start()
        rig.collect().check()
        rig.allreduce(4).check()
        thread.join(60)
        assert answers == [0]
        assert "the job migrated at operation" in capfd.readouterr().out
        rules = next(keeper.rules for keeper in rig.service.network.switches.keepers if keeper.target.name == switch)
        assert not rules.labels
        counted = rig.verdicts()["unknown"]
        rig.allreduce(SIZE // 2).check()
        assert rig.verdicts()["unknown"] == counted, "no packet of the job comes to it any more"
