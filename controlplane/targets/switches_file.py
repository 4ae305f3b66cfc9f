"""The switches file, which says where switches listen, and connections to all switches in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from controlplane.common.inputs import read_json, unknown_name
from controlplane.common.log_lines import Log
from controlplane.common.rpc.channels import check_server
from controlplane.common.rpc.tls import Tls
from controlplane.planner.topology import Topology
from controlplane.targets import fabric
from controlplane.targets.base import SwitchAddress, SwitchTarget
from controlplane.targets.connecting import SessionTarget
from controlplane.targets.kind import Kind
from controlplane.targets.secret import SecretTarget
from controlplane.targets.secret_labels import SecretLabels


class SwitchesFileError(ValueError):
    """The switches file cannot be used; the message says what to change in it."""


def load_switches(path: Path) -> dict[str, SwitchAddress]:
    """Read a switches file: {"s1": {"address": "127.0.0.1:9559", "device_id": 1}, ...}. Raise SwitchesFileError where
    it cannot be used.

    An entry may have "tls": {"authority": FILE, "certificate": FILE, "key": FILE} (relative to the switches file).
    """
    example = '{"s1": {"address": "127.0.0.1:9559", "device_id": 1}}'
    try:
        data = read_json(path)
    except OSError as error:
        words = f"cannot read switches file {path}: {error.strerror}; it looks like {example}"
        raise SwitchesFileError(words) from None
    except ValueError as error:
        raise SwitchesFileError(f"cannot read switches file {path}: {error}; it looks like {example}") from None
    if not isinstance(data, dict) or not data:
        raise SwitchesFileError(f"switches file {path} must be an object with a switch or more, like {example}")
    switches: dict[str, SwitchAddress] = {}
    taken: dict[tuple[str, int], str] = {}
    for name, entry in data.items():
        address = entry.get("address") if isinstance(entry, dict) else None
        device_id = entry.get("device_id") if isinstance(entry, dict) else None
        if isinstance(entry, dict) and (unknown := unknown_name(entry, ("address", "device_id", "tls"))):
            raise SwitchesFileError(f"switches file {path}: {name}: {unknown}")
        if not isinstance(address, str) or ":" not in address:
            raise SwitchesFileError(f"switches file {path}: {name} needs an address host:port, got {address!r}")
        try:
            check_server(address)
        except ValueError as error:
            raise SwitchesFileError(f"switches file {path}: {name}: {error}") from None
        if not isinstance(device_id, int) or isinstance(device_id, bool) or device_id < 0:
            raise SwitchesFileError(f"switches file {path}: {name} needs a device_id (a number), got {device_id!r}")
        other = taken.setdefault((address, device_id), name)
        if other != name:
            words = f"{other} and {name} are both device {device_id} at {address}"
            raise SwitchesFileError(f"switches file {path}: {words}")
        switches[name] = SwitchAddress(name, address, device_id, _switch_tls(entry.get("tls"), path, name))
    return switches


def _switch_tls(files: object, path: Path, name: str) -> Tls | None:
    if files is None:
        return None
    parts = ("authority", "certificate", "key")
    if not isinstance(files, dict) or not files or not set(files) <= set(parts):
        raise SwitchesFileError(f"switches file {path}: tls of {name} must be an object with {', '.join(parts)}")
    try:
        return Tls(**{part: path.parent / str(file) for part, file in files.items()})
    except ValueError as error:
        raise SwitchesFileError(f"switches file {path}: {name}: {error}") from None


def connect_targets(
    switches: Sequence[SwitchAddress],
    kind: Kind,
    timeout: float,
    log: Log,
    topology: Topology | None = None,
    *,
    polite: bool = False,
    labels: SecretLabels | None = None,
    may_connect: Callable[[], bool] | None = None,
) -> list[SwitchTarget]:
    """Return connected targets of all switches.

    Args:
        polite: take no switch from a controller that holds it.
        labels: translates label numbers to the labels on switches; None where they are the same.
        may_connect: like that of SessionTarget.

    Raise FabricError where one cannot be connected; no connection is left open then.
    """
    targets = [kind.target(switch, topology) for switch in switches]
    for one in targets:
        if may_connect is not None and isinstance(one, SessionTarget):
            one.may_connect = may_connect
    if labels is not None:
        targets = [SecretTarget(target, labels) for target in targets]
    for target in targets:
        target.polite = polite
    try:
        fabric.connect(targets, timeout, log)
    except BaseException:
        for target in targets:
            target.close()
        raise
    return targets
