"""Translates between the messages of inart.proto and the core: reports of agents become events, actions become
messages."""

from __future__ import annotations

from collections.abc import Callable

from controlplane.common.agentconfig import AgentConfig
from controlplane.common.rpc import inart_pb2 as pb
from controlplane.service.core import actions
from controlplane.service.core import events as ev


def wants_to_join(request: pb.JoinRequest, peer: str, connection: int) -> ev.Joined:
    """Return the event for an agent's request to join, on a connection of this number."""
    return ev.Joined(
        connection,
        request.node,
        tuple(request.addresses),
        request.role,
        request.version,
        request.agent,
        request.process,
        peer,
        request.running_epoch,
        request.running_digest,
        request.take_over,
    )


def progress(report: pb.UpdateReport) -> ev.Prepared | ev.Drained:
    """Return the event for an agent's report about a change of plan."""
    if report.stage == pb.UpdateReport.DRAINED:
        repeated = report.repeated_operations, report.repeated_bytes
        return ev.Drained(report.agent, report.epoch, *repeated, report.failure)
    return ev.Prepared(report.agent, report.epoch, report.next_operation, tuple(report.done), report.failure)


def message(word: actions.Word, node: str, configuration: Callable[[str, int], AgentConfig]) -> pb.Event | None:
    """Return the message for an action (`word`) to a node's agent; None where the action ends its stream of events.
    `configuration` returns, by node and epoch, what the agent gets: with the epoch's key, and with the labels that are
    on the wire."""
    event = pb.Event()
    match word:
        case actions.Waiting(missing, reason):
            event.waiting.CopyFrom(pb.Waiting(missing=missing, reason=reason))
        case actions.Configure(epoch):
            config = configuration(node, epoch)
            event.configuration.agent_config, event.configuration.digest = config.dumps(), config.digest
        case actions.Prepare(epoch, again):
            config = configuration(node, epoch)
            event.prepare.CopyFrom(pb.Prepare(agent_config=config.dumps(), digest=config.digest, again=again))
        case actions.Abort(reason, nodes):
            event.abort.CopyFrom(pb.Abort(reason=reason, nodes=nodes))
        case actions.Dismiss(reason):
            event.refused.CopyFrom(pb.Refused(reason=reason))
        case actions.SwitchOver(epoch, first_operation, given):
            event.switch_over.CopyFrom(pb.SwitchOver(epoch=epoch, first_operation=first_operation, given=given))
        case actions.Withdraw(epoch, reason):
            event.withdraw.CopyFrom(pb.Withdraw(epoch=epoch, reason=reason))
        case actions.Retire(epoch):
            event.retire.CopyFrom(pb.Retire(epoch=epoch))
        case actions.End():
            return None
    return event
