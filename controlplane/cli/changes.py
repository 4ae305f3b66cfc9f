"""Prints the changes that a dry run, or a reload of the topology, makes to the switches."""

from __future__ import annotations

from collections.abc import Sequence

from controlplane.common.rpc import inart_pb2 as pb


def change_lines(changes: Sequence[pb.EntryChange]) -> list[str]:
    """Return a line for each entry, under a line that counts them."""
    if not changes:
        return ["no entry on any switch would change"]
    off = sum(one.operation == "delete" for one in changes)
    switches = len({one.switch for one in changes})
    lines = [f"entries: {len(changes) - off} written, {off} taken off, on {switches} switches"]
    return lines + [f"  {one.switch}: {one.operation} {one.entry}" for one in changes]


def format_reload(reply: pb.ReloadReply, *, dry_run: bool) -> str:
    """Return the answer to `topology reload` as the command prints it."""
    if not dry_run:
        return f"{reply.summary}; {reply.entries} changes on the switches"
    return "\n".join([reply.summary, *change_lines(reply.changes), "nothing was changed (--dry-run)"])
