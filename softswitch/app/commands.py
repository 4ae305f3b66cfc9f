"""The commands of bmv2's simple_switch_CLI, on one device.

A command is a line: ``table_add ipv4_lpm forward 10.0.0.0/8 => 02:00:00:00:00:01 2``. Names may be cut to a suffix that
only one object has (``ipv4_lpm`` for ``MyIngress.ipv4_lpm``). Messages that scripts read have bmv2's form.
"""

from __future__ import annotations

from softswitch.app import extern_commands, table_commands
from softswitch.app.command_context import COMMANDS, Answer, Context
from softswitch.dataplane.device import Device
from softswitch.errors import InvalidValue

assert extern_commands and table_commands  # They fill COMMANDS.

_NO_DEFAULT = "a table with an action profile has no default action"
_RELOAD = "push the program over P4Runtime, or restart softswitch with it"
_NO_CLOCK = "the clock of the switch cannot be read"
ABSENT = {
    "mc_set_lag_membership": "list the ports of the group in mc_node_create",
    "table_indirect_set_default": _NO_DEFAULT,
    "table_indirect_set_default_with_group": _NO_DEFAULT,
    "table_indirect_reset_default": _NO_DEFAULT,
    "load_new_config_file": _RELOAD,
    "swap_configs": _RELOAD,
    "write_config_to_file": "read the program with GetForwardingPipelineConfig of P4Runtime",
    "serialize_state": "read the state with table_dump, register_read and counter_read",
    "reset_state": "use `softswitch ctl SOCKET reboot DEVICE`",
    "set_queue_depth": "use `softswitch ctl SOCKET shape DEVICE PORT queue_packets=N`",
    "set_queue_rate": "use `softswitch ctl SOCKET shape DEVICE PORT rate_mbps=N`",
    "set_toeplitz_hash_key": "Toeplitz hashes are not supported",
    "port_add": "use `softswitch ctl SOCKET port add DEVICE PORT INTERFACE`",
    "port_remove": "use `softswitch ctl SOCKET port remove DEVICE PORT`",
    "show_ports": "use `softswitch stats SOCKET DEVICE`",
    "switch_info": "use `softswitch stats SOCKET DEVICE`",
    "get_time_elapsed": _NO_CLOCK,
    "get_time_since_epoch": _NO_CLOCK,
    "shell": "run the command in a shell",
}
"""The remedy for each command of bmv2 that has no counterpart."""


class Commands:
    """The commands of one device. The caller makes sure that no program is loaded during a command."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._generation: int | None = None
        self._context = Context(device)

    def run(self, line: str) -> Answer:
        """Run one command. Raise ``SoftswitchError`` if it is refused."""
        name, *words = line.split() or [""]
        if name == "help":
            return _help(words)
        if name in ABSENT:
            raise InvalidValue(f"{name} has no counterpart in softswitch: {ABSENT[name]}")
        command = COMMANDS.get(name)
        if command is None:
            raise InvalidValue(f"there is no command {name!r}; `help` lists the commands")
        if len(words) < command.least or (command.most is not None and len(words) > command.most):
            raise InvalidValue(f"{name}: {len(words)} arguments; usage: {name} {command.words}".rstrip())
        if self._generation != self._device.generation:  # Another program runs: handles and nodes are void.
            self._generation, self._context = self._device.generation, Context(self._device)
        return command.function(self._context, words)


def _help(words: list[str]) -> Answer:
    names = [name for name in words if name in COMMANDS] or sorted(COMMANDS)
    lines = [f"{name} {COMMANDS[name].words}".rstrip() for name in names]
    return Answer(lines, lines)
