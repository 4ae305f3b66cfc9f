"""The objects that the stages of a run share."""

from collections.abc import Callable
from dataclasses import dataclass

from controlplane.planner.job import Job
from controlplane.planner.topology import Topology
from evaluation.bmv2_fattree.settings import Settings
from topologies import Emulation
from topologies.deployment import Fabric
from topologies.zygote import Zygote

Progress = Callable[[str], None]


@dataclass
class Setting:
    """The objects that the stages share: the running network, its switches, and the zygote."""

    settings: Settings
    topology: Topology
    job: Job
    emulation: Emulation
    fabric: Fabric
    zygote: Zygote
    say: Progress
