"""Reads a controller's topology and switches file again, for `topology reload` and SIGHUP."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

from controlplane.common.log_lines import Log
from controlplane.planner.generators import parse_topology
from controlplane.service.network import Network
from controlplane.service.reload import Reloaded, reload
from controlplane.service.state import default_folder
from controlplane.targets.base import SwitchAddress, SwitchTarget


class Files:
    """A running controller's topology and switches file.

    Args:
        switches: Returns the switches of a topology, as the file says at that time; raises what makes the command fail.
        close: Is given each target that is connected, to be closed in the end.
    """

    def __init__(
        self,
        arguments: argparse.Namespace,
        network: Network,
        *,
        connect: Callable[..., Sequence[SwitchTarget]],
        switches: Callable[[], Sequence[SwitchAddress]],
        close: Callable[[SwitchTarget], object],
        log: Log,
    ) -> None:
        self._arguments, self._network, self._connect = arguments, network, connect
        self._switches, self._close, self._log = switches, close, log
        self._before = switches()

    def read_again(self, dry_run: bool = False) -> Reloaded:
        """Read the files again and apply what has changed; with `dry_run`, return the changes only. Raise what reading
        them and `reload` raise."""
        topology = parse_topology(self._arguments.topology)
        switches = self._switches()

        def connect(names: Sequence[str]) -> Sequence[SwitchTarget]:
            wanted = [one for one in switches if one.name in names]
            made = self._connect(wanted, topology=topology)
            for target in made:
                self._close(target)
            return made

        done = reload(self._network, topology, connect, dry_run=dry_run)
        if not dry_run and self._arguments.keeps and self._arguments.state is None:
            self.keep_folder(switches)
        return done

    def hangup(self) -> None:
        """Read the files again on a signal, to which nobody waits for an answer: errors go to the log."""
        try:
            self.read_again()
        except Exception as error:  # The controller must go on, whatever is wrong with the files.
            self._log.warning(f"topology not reloaded: {error}")

    def keep_folder(self, switches: Sequence[SwitchAddress]) -> None:
        """Let the state folder be found at the next start, too: it is named after the switches, so a folder named after
        the new ones becomes a link to it."""
        old, new = (default_folder(f"{one.address} {one.device_id}" for one in of) for of in (self._before, switches))
        self._before = switches
        if new != old and not new.exists():
            new.symlink_to(old.resolve())
        elif new.resolve() != old.resolve():
            self._log.warning(f"{new} belongs to these switches already: start the controller with --state {old}")
