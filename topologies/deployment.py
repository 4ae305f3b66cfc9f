"""A plan on the switches of an emulation, and the controller that its agents join."""

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from controlplane.controller import Controller, PlanSummary
from controlplane.deploy import DEFAULT_ARTIFACTS, SwitchAddress, connect_targets, load_artifact
from controlplane.plan import Plan
from controlplane.rules import RuleSet, build, routes
from controlplane.runtime.epochs import EpochStore
from controlplane.runtime.keeper import Keeper
from controlplane.runtime.roster import Roster
from controlplane.runtime.update import Updater
from controlplane.targets import fabric
from controlplane.targets.base import SwitchTarget
from controlplane.targets.kinds import P4RuntimeKind
from p4src.protocol import VERSION
from topologies.emulation import Emulation

CONNECT_SECONDS = 30.0
JOB_ID = 1
# Share of the plan's rate that agents leave unused. A plan fills its bottleneck: sent at exactly that rate, a queue
# that has built up once (the CPU was away for a moment) would never drain.
HEADROOM = 0.03


class Fabric:
    """The emulation's switches, connected over P4Runtime. A context manager."""

    def __init__(
        self, emulation: Emulation, log: Callable[[str], None] = lambda line: None, artifacts: str = DEFAULT_ARTIFACTS
    ) -> None:
        """Connect to every switch. Raises FabricError."""
        self.emulation = emulation
        self.log = log
        kind = P4RuntimeKind(load_artifact(artifacts))
        self._limits = kind.limits
        self._directory = tempfile.TemporaryDirectory(prefix="inart-epoch-")
        self._epochs = EpochStore(Path(self._directory.name) / "epoch")
        addresses = [SwitchAddress(n, a.address, a.device_id) for n, a in emulation.switch_addresses.items()]
        self.targets: list[SwitchTarget] = connect_targets(addresses, kind, CONNECT_SECONDS, log)

    def serve(self, plan: Plan) -> "Service":
        """Install the plan (by difference) and start its controller. Raises FabricError, DoesNotFit."""
        return Service(self, plan)

    def install_routes(self) -> None:
        """IPv4 between all hosts, and no aggregation. Raises FabricError."""
        per_switch = routes(self.emulation.topology)
        fabric.install(self.targets, {name: RuleSet(name, (), (), entries) for name, entries in per_switch.items()})

    def __enter__(self) -> "Fabric":
        return self

    def __exit__(self, *_: object) -> None:
        for target in self.targets:
            target.close()
        self._directory.cleanup()


class Service:
    """One installed plan and its controller; leaving the context ends the controller, the rules stay."""

    def __init__(self, owner: Fabric, plan: Plan) -> None:
        paced = replace(plan, rate_mbps=plan.rate_mbps * (1 - HEADROOM))
        deployment = build(paced, owner.emulation.topology, owner._limits, job_id=JOB_ID, epoch=0)
        self.plan = plan
        self.installed = fabric.install(owner.targets, deployment.rulesets, owner.log)
        self.roster = Roster(deployment.agents, owner._epochs, VERSION, owner.log)
        self._keepers = [Keeper(t, deployment.rulesets[t.name], owner.log) for t in owner.targets]
        summary = PlanSummary(plan.job.name, plan.strategy, plan.rate_mbps)
        updater = Updater(
            plan,
            owner.emulation.topology,
            deployment,
            limits=owner._limits,
            keepers=self._keepers,
            roster=self.roster,
            log=owner.log,
            job_id=JOB_ID,
            pace=1 - HEADROOM,
        )
        self._controller = Controller(summary, self.roster, self._keepers, owner.log, updater)
        try:
            port = self._controller.start(f"{owner.emulation.controller_host}:0")
        except BaseException:
            self.__exit__()
            raise
        self.address = f"{owner.emulation.controller_host}:{port}"

    def __enter__(self) -> "Service":
        return self

    def __exit__(self, *_: object) -> None:
        self._controller.stop()
        for keeper in self._keepers:
            keeper.close()
