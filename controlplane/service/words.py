"""Translates between the messages of inart.proto and the core: reports of agents become events, actions become
messages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, fields

from controlplane.common.agentconfig import AgentConfig
from controlplane.common.rpc import inart_pb2 as pb
from controlplane.service.core import actions
from controlplane.service.core import events as ev

KINDS: dict[type[actions.Word], str] = {
    actions.Waiting: "waiting",
    actions.Configure: "configuration",
    actions.Prepare: "prepare",
    actions.Abort: "abort",
    actions.Dismiss: "refused",
    actions.SwitchOver: "switch_over",
    actions.Withdraw: "withdraw",
    actions.Retire: "retire",
}
"""The message (the field of pb.Event) for each action, whose fields are its own, but for the agent's configuration."""


def wants_to_join(request: pb.JoinRequest, peer: str, connection: int) -> ev.Joined:
    """Return the event for an agent's request to join, on a connection of this number."""
    given = {field.name: getattr(request, field.name) for field in fields(ev.Joined) if hasattr(request, field.name)}
    return ev.Joined(connection=connection, peer=peer, **given | {"addresses": tuple(request.addresses)})


def progress(report: pb.UpdateReport) -> ev.Prepared | ev.Drained:
    """Return the event for an agent's report about a migration."""
    if report.stage == pb.UpdateReport.DRAINED:
        repeated = report.repeated_operations, report.repeated_bytes
        return ev.Drained(report.agent, report.epoch, *repeated, report.failure)
    return ev.Prepared(report.agent, report.epoch, report.next_operation, tuple(report.done), report.failure)


def message(word: actions.Word, node: str, configuration: Callable[[str, int], AgentConfig]) -> pb.Event | None:
    """Return the message for an action (`word`) to a node's agent; None where the action ends its stream of events.
    `configuration` returns, by node and epoch, what the agent gets: with the epoch's key, and with the labels that are
    on the wire."""
    if isinstance(word, actions.End):
        return None
    if isinstance(word, actions.Configure | actions.Prepare):
        config = configuration(node, word.epoch)
        given: dict[str, object] = {"agent_config": config.dumps(), "digest": config.digest}
        if isinstance(word, actions.Prepare):
            given["again"] = word.again
    else:
        given = asdict(word)
    return pb.Event(**{KINDS[type(word)]: given})
