"""Chooses between the network and torch.distributed by their speed (worker_agent/ways.py), alike on all ranks."""

from __future__ import annotations

import json
from typing import Any

from controlplane.common.numbers import short
from worker_agent.collectives import GATHER, SCATTER_SUM, SUM, broadcast
from worker_agent.torch.control import Control
from worker_agent.ways import Ways

NAMED = {"all-reduce": SUM, "reduce-scatter": SCATTER_SUM, "all-gather": GATHER, "broadcast": broadcast(0)}


def agreed_ways(reducer: Any, control: Control) -> Ways | None:
    """Return the facts on which the choice depends, when all ranks of the group know the same; None where there is no
    choice, and every operation that can goes through the network. This is a collective call.

    `reducer` is this rank's agent; None where it has none, or shares it with other ranks.
    """
    own = getattr(reducer, "ways", None)
    first, *others = control.exchange("" if own is None else json.dumps(own.to_json()))
    return Ways(**json.loads(first)) if first and all(text == first for text in others) else None


def said(ways: Ways) -> str:
    """Return in words which operations go over torch.distributed because that is faster; empty where none do."""
    found = {name: ways.outside(op) for name, op in NAMED.items()}
    if found["all-gather"] is None:
        found["all-gather of a group that reduce-scatters nothing"] = ways.outside(GATHER, alone=True)
    parts = [
        f"{name} from {sizes[0]:,} bytes on" if sizes[1] is None else f"{name} of {sizes[0]:,} to {sizes[1]:,} bytes"
        for name, sizes in found.items()
        if sizes is not None
    ]
    if not parts:
        return ""
    return (
        f"faster over torch.distributed, and done so: {', '.join(parts)} (the plan carries {short(ways.network_mbps)} "
        f"Mbit/s, a ring of {ways.workers} hosts {short(ways.ring_mbps)})"
    )
