"""A small job: the configurations of a plan's agents, without a network."""

from __future__ import annotations

from controlplane.common.agentconfig import AgentConfig, RootFlow, RootTree, WorkerTree
from p4src.protocol import udp_port

WORKERS = ("w1", "w2")
SERVERS = ("ps1",)


def configs(address: str = "") -> dict[str, AgentConfig]:
    """Return a job of two workers and a parameter server; `address` is used for all, else 10.0.0.1, ... in order."""
    common = {"job": "test", "job_id": 1, "epoch": 0, "workers": WORKERS, "parameter_servers": SERVERS}
    made = {}
    for index, node in enumerate((*WORKERS, *SERVERS)):
        own = address or f"10.0.0.{index + 1}"
        if node in WORKERS:
            trees = (WorkerTree(0, "ps1", 1.0, 1 + index, 10, 20 + index, 64, 100.0, udp_port(1, 0)),)
            made[node] = AgentConfig(
                **common, node=node, role="worker", index=index, values_per_packet=256, worker_trees=trees, address=own
            )
        else:
            flows = tuple(RootFlow(1 + worker, ((worker,),), False) for worker in range(len(WORKERS)))
            roots = (RootTree(0, flows, 10, (20, 21), 64, udp_port(1, 0)),)
            made[node] = AgentConfig(
                **common,
                node=node,
                role="parameter_server",
                index=0,
                values_per_packet=256,
                root_trees=roots,
                address=own,
            )
    return made
