"""`deploy cabling`: checks that the cables between the switches lead where the topology file says."""

from __future__ import annotations

import argparse
import json

from controlplane.cli.options import DeployError, connected, kind_of, target_of, wanted_switches
from controlplane.common.log_lines import Log
from controlplane.planner.topology import Topology
from controlplane.targets.base import TargetError
from controlplane.targets.cabling import cables_of, ends_of, faults, trace
from controlplane.targets.p4runtime.target import P4RuntimeTarget


class WrongCables(Exception):
    """Error: cables are not as the topology says; the message names each."""


def check_cables(arguments: argparse.Namespace, topology: Topology, log: Log) -> None:
    """Print whether the cables are as the topology says.

    Raise WrongCables where they are not, DeployError where the switches cannot send packets, or TargetError.
    """
    of = target_of(arguments)
    if of is None or of.protocol != "P4Runtime":
        raise DeployError("cabling needs switches that take packets over P4Runtime, by their CPU port: --bmv2")
    kind, switches = kind_of(arguments), wanted_switches(arguments, topology)
    with connected(arguments, kind, switches, topology, log) as reached:
        targets = [target for target in reached if isinstance(target, P4RuntimeTarget)]
        for target in targets:
            if target.load_pipeline():
                log.info(f"switch {target.name}: program loaded")
        wanted = cables_of(topology)
        log.info(f"tracing {len(wanted)} directions of cables between {len(targets)} switches")
        heard = trace(
            targets, ends_of(topology), wanted, cpu_port=arguments.cpu_port,
            values=kind.artifact.manifest.values_per_packet,
        )  # fmt: skip
        refused = [f"switch {target.name}: {target.session.refused}" for target in targets if target.session.refused]
        if refused:
            advice = f"start it with --cpu-port {arguments.cpu_port}"
            raise TargetError("\n".join([*refused, advice]))
    wrong = faults(wanted, heard)
    hosts = len(heard) - len(set(wanted.values()))
    right = f"{len(wanted) - len(wrong)} of {len(wanted)} directions are as the file says"
    right += f"; {hosts} ports of hosts not checked"
    if len(wrong) == len(wanted) and not any(fault.leads for fault in wrong):
        raise TargetError(f"no packet arrived anywhere: is {arguments.cpu_port} the switches' CPU port (--cpu-port)?")
    if arguments.json:
        ends = [{"from": str(fault.sender), "wanted": str(fault.wanted), "leads": [*map(str, fault.leads)]}
                for fault in wrong]  # fmt: skip
        print(json.dumps({"directions": len(wanted), "wrong": ends, "host_ports_not_checked": hosts}))
    if wrong:
        raise WrongCables("\n".join([*map(str, wrong), right]))
    if not arguments.json:
        print(right)
