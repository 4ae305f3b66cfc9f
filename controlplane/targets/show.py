"""Deployments as text and JSON, as `inart deploy --dry-run` prints them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

from controlplane.common.numbers import short
from controlplane.planner.entries import Aggregate, LabelEntry, RuleSet
from controlplane.planner.plan import Plan
from controlplane.planner.rules import Deployment


def deployment_json(plan: Plan, deployment: Deployment) -> dict[str, Any]:
    """Return everything that would be installed and sent, as plain data."""
    return {
        "plan": plan.to_json(),
        "switches": {name: _ruleset_json(rules) for name, rules in sorted(deployment.rulesets.items())},
        "agents": {name: config.to_json() for name, config in deployment.agents.items()},
        **({"multicasts": deployment.multicasts} if deployment.multicasts else {}),
    }


def _ruleset_json(rules: RuleSet) -> dict[str, Any]:
    return {
        "labels": [
            {
                "ingress_port": entry.ingress_port,
                "label": entry.label,
                "action": type(entry.action).__name__.lower(),
                "parameters": asdict(entry.action),
            }
            for entry in rules.labels
        ],
        "groups": [{"group": group.group, "ports": list(group.ports)} for group in rules.groups],
        "routes": [asdict(route) for route in rules.routes],
        **({"ports": [asdict(port) for port in rules.ports]} if rules.ports else {}),
        **({"bridge": [str(entry) for entry in rules.bridge]} if rules.bridge else {}),
    }


def rule_lines(rules: RuleSet, flows: Mapping[int, str]) -> Iterator[str]:
    """Yield one line per rule, each label with the flow that it stands for."""
    yield f"{len(rules.labels)} labels, {len(rules.groups)} groups, {len(rules.routes)} routes"
    for group in rules.groups:
        yield str(group)
    for entry in sorted(rules.labels, key=lambda entry: (entry.label, entry.ingress_port)):
        yield f"{entry}   # {flows.get(entry.label, 'partial sums')}"
    for route in rules.routes:
        yield str(route)
    for bridge in rules.bridge:
        yield str(bridge)


def deployment_lines(
    plan: Plan,
    deployment: Deployment,
    switch_lines: Callable[[RuleSet, Mapping[int, str]], Iterable[str]] = rule_lines,
) -> Iterator[str]:
    """Yield the lines of everything that would be installed. `switch_lines` returns one switch's summary and then a
    line per entry, from its rules and the meanings of labels."""
    yield str(plan)
    flows = label_meanings(deployment)
    for name, rules in sorted(deployment.rulesets.items()):
        summary, *lines = switch_lines(rules, flows)
        yield ""
        yield f"switch {name}: {summary}"
        for line in lines:
            yield f"  {line}"
    yield ""
    for name, config in deployment.agents.items():
        for up in config.worker_trees:
            yield (
                f"worker {name}: tree {up.tree} to {up.root}: share {up.share:.4f}, {short(up.rate_mbps)} Mbit/s, "
                f"window {up.slots} chunks, label {up.up_label}"
            )
        for root in config.root_trees:
            direct = sum(not flow.partial for flow in root.flows)
            yield (
                f"parameter server {name}: tree {root.tree}: {direct} direct flows, "
                f"{len(root.flows) - direct} partial sums, results under label {root.return_label}"
            )


def label_meanings(deployment: Deployment) -> dict[int, str]:
    """Return, by label, words for its flow."""
    meanings = {label: f"multicast of {sender}" for sender, label in deployment.multicasts.items()}
    for node, config in deployment.agents.items():
        for tree in config.worker_trees:
            meanings[tree.up_label] = f"tree {tree.tree}: from {node}"
            meanings[tree.return_label] = f"tree {tree.tree}: results to all"
            meanings[tree.answer_label] = f"tree {tree.tree}: answers to {node}"
        for root in config.root_trees:
            for worker, label in zip(config.workers, root.others_labels, strict=False):
                meanings[label] = f"tree {root.tree}: chunks of {worker} to the others"
    for rules in deployment.rulesets.values():
        for entry in rules.labels:
            if isinstance(entry.action, Aggregate):
                source = _tree_of(entry, meanings)
                meanings.setdefault(entry.action.next_label, f"{source}: partial sums of {rules.switch}")
    return meanings


def _tree_of(entry: LabelEntry, meanings: dict[int, str]) -> str:
    return meanings.get(entry.label, "").partition(":")[0] or "tree"
