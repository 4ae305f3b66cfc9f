"""Installs plans on the switches of an emulation, and runs the controller that its agents join."""

from controlplane.common.log_lines import SILENT, Log
from controlplane.planner.entries import RuleSet
from controlplane.planner.plan import Plan
from controlplane.planner.rules import routes
from controlplane.service.epochs import EpochStore
from controlplane.service.journal import Journal
from controlplane.service.network import Network, Settings
from controlplane.service.roster import Roster
from controlplane.service.serving import Serving
from controlplane.targets import fabric
from controlplane.targets.registry import kind_to_connect
from controlplane.targets.switches_file import connect_targets
from topologies.emulation import Emulation

CONNECT_SECONDS = 30.0
JOB_ID = 1
# Part of the plan's rate that agents leave unused. A plan fills its bottleneck: sent at exactly that rate, a queue that
# has built up once (because the CPU was busy for a moment) would never drain.
HEADROOM = 0.03


class Fabric:
    """The emulation's switches, connected over P4Runtime, as a context manager."""

    def __init__(self, emulation: Emulation, log: Log = SILENT, journal: Journal | None = None) -> None:
        """Connect to every switch. Raise FabricError where that fails. `journal` is the controller's."""
        self.emulation = emulation
        self.log, self.journal = log, journal
        self.kind = kind_to_connect("bmv2")
        self.epochs = EpochStore(emulation.directory)
        self.labels = self.epochs.labels()
        addresses = list(emulation.switch_addresses.values())
        self.targets = connect_targets(addresses, self.kind, CONNECT_SECONDS, log, labels=self.labels)

    def serve(self, plan: Plan, *, answers_failures: bool = False, beside: float | None = None) -> "Service":
        """Install the plan (by difference) and start its controller. Raise FabricError where that fails, DoesNotFit
        where the plan is too large for a switch.

        Args:
            plan: the plan.
            answers_failures: whether the controller reroutes or replans around failures, as `serve` does.
            beside: see the controller's `Settings`.
        """
        return Service(self, plan, answers_failures=answers_failures, beside=beside)

    def control(self, *, beside: float | None = None) -> "Service":
        """Start the network's controller without any job; see `serve`. Raise FabricError where that fails."""
        return Service(self, None, answers_failures=True, beside=beside)

    def install_routes(self) -> None:
        """Install IPv4 routes between all hosts, and no aggregation. Raise FabricError where that fails."""
        per_switch = routes(self.emulation.topology)
        fabric.install(self.targets, {name: RuleSet(name, (), (), entries) for name, entries in per_switch.items()})

    def __enter__(self) -> "Fabric":
        return self

    def __exit__(self, *_: object) -> None:
        for each in self.targets:
            each.close()


class Service:
    """A running controller. Leaving the context ends the controller; the rules stay installed."""

    def __init__(self, owner: Fabric, plan: Plan | None, *, answers_failures: bool, beside: float | None) -> None:
        self.network = Network(
            owner.emulation.topology, owner.kind, owner.targets, epochs=owner.epochs, labels=owner.labels,
            settings=Settings(pace=1 - HEADROOM, journal=owner.journal, beside=beside), log=owner.log,
        )  # fmt: skip
        self._plan = plan
        if plan is None:
            self.network.switches.fill()
        else:
            deployment, _ = self.network.install(plan, JOB_ID)
            self.network.run(plan, deployment, JOB_ID)
        self._serving = Serving(self.network, owner.log)
        try:
            port = self._serving.start(f"{owner.emulation.controller_host}:0", answers_failures=answers_failures)
        except BaseException:
            self.__exit__()
            raise
        self.address = f"{owner.emulation.controller_host}:{port}"

    @property
    def plan(self) -> Plan:
        """The plan that the controller began with."""
        assert self._plan is not None, "it began without a job"
        return self._plan

    @property
    def roster(self) -> Roster:
        """The roster of the only job."""
        return self.network.jobs.get().roster

    def __enter__(self) -> "Service":
        return self

    def __exit__(self, *_: object) -> None:
        self._serving.close()
