"""The file of --config: settings that are the same for all commands of a site, in TOML.

    [switches]
    artifacts = "v1model-64"
    bridge = true

    [controller]
    store = "etcd://e1:2379,e2:2379,e3:2379/mine"

docs/deploy.md has all settings. Paths are relative to the file.
"""

from __future__ import annotations

import argparse
import os
import tomllib
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NewType, TypeVar, get_type_hints

from controlplane.common.inputs import unknown_name

Table = TypeVar("Table")
Program = NewType("Program", str)
"""A name of a compiled program ("v1model-64"), or a folder, which has a slash."""


class ConfigFileError(ValueError):
    """Error: the file cannot be used; the message names it and says what to change."""


@dataclass(frozen=True)
class SwitchesTable:
    """The settings of switches, for `deploy` and `serve`.

    Attributes:
        artifacts: the compiled program; None for the target's own.
        bridge: whether to forward ARP, IPv6, VLAN frames and multicast.
        cpu_port: with `bridge`, the port for frames to the switch itself (LLDP).
    """

    artifacts: Program | None = None
    bridge: bool = False
    cpu_port: int | None = None

    def __post_init__(self) -> None:
        if self.cpu_port is not None and not (self.bridge and 0 <= self.cpu_port < 1 << 9):
            raise ValueError("cpu_port is a port that the switch has, 0 to 511, and needs bridge = true")


@dataclass(frozen=True)
class ControllerTable:
    """The settings of `serve`.

    Attributes:
        quotas: file of the tenants' quotas.
        beside: percentage of each link that jobs keep beside measured other traffic; None: it is not measured.
        tokens_listen: a second address, for those with tokens, where those with certificates have the first one.
        store: store of several controllers, etcd://HOST:PORT,.../NETWORK or etcds://...
        store_credentials: folder of certificates for etcds.
        name: name of this controller; None for its machine and address.
        takeover_after: seconds after which another controller takes over from a silent leader; None for the usual.
    """

    quotas: Path | None = None
    beside: float | None = None
    tokens_listen: str | None = None
    store: str | None = None
    store_credentials: Path | None = None
    name: str | None = None
    takeover_after: float | None = None

    def __post_init__(self) -> None:
        if self.beside is not None and not 0 < self.beside <= 100:
            raise ValueError(f"beside is a percentage of each link, above 0 and at most 100, got {self.beside:g}")
        if self.name is not None and len(self.name.split()) != 1:
            raise ValueError(f"name is one word, got {self.name!r}")
        if self.takeover_after is not None and not 0.2 <= self.takeover_after <= 600:
            raise ValueError(f"takeover_after is 0.2 to 600 seconds, got {self.takeover_after:g}")


@dataclass(frozen=True)
class AgentTable:
    """The settings of `agent`: mode and group of its socket."""

    mode: str = "660"
    group: str | None = None

    def __post_init__(self) -> None:
        if not self.mode.isdigit() or not set(self.mode) <= set("01234567") or int(self.mode, 8) > 0o777:
            raise ValueError(f'mode is permissions in octal, "000" to "777", got {self.mode!r}')


@dataclass(frozen=True)
class SitesTable:
    """The settings of `site coordinator`.

    Attributes:
        patience: seconds after the first site, after which a round begins without late sites; None: a round waits for
            all sites that are not lost.
        links: JSON file of known rates, which are not measured.
        probe_seconds: duration of one rate measurement; 0: no measurement.
        all_pairs: whether to measure every pair of sites, also one whose round trip is that of a path over a third.
        chunk: minimum values per chunk, more on fast links; None for the usual.
        mtu: bytes per packet of the network; None for Ethernet's.
    """

    patience: float | None = None
    links: Path | None = None
    probe_seconds: float = 1.0
    all_pairs: bool = False
    chunk: int | None = None
    mtu: int | None = None

    def __post_init__(self) -> None:
        if self.patience is not None and self.patience < 0:
            raise ValueError(f"patience is at least 0 seconds, got {self.patience:g}")
        if not 0 <= self.probe_seconds <= 60:
            raise ValueError(f"probe_seconds is 0 to 60 seconds, got {self.probe_seconds:g}")
        _check_packets(self.chunk, self.mtu)


@dataclass(frozen=True)
class OverlayTable:
    """The settings of `overlay coordinator` and `overlay agent`.

    Attributes:
        chunk: values per chunk; None for the usual.
        mtu: bytes per packet of the network; None for Ethernet's. `wan` counts packet headers.
        loss: fraction of the packets that links lose: `wan` plans with the rate that TCP reaches then.
        detours: whether chunks may also use the plan's auxiliary paths.
        connections: initial TCP connections to each neighbour.
        most_connections: maximum TCP connections to each neighbour if packets are lost; None for the usual.
    """

    chunk: int | None = None
    mtu: int | None = None
    loss: float = 0.0
    detours: bool = False
    connections: int = 1
    most_connections: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.loss < 1:
            raise ValueError(f"loss is a fraction of the packets, at least 0 and below 1, got {self.loss:g}")
        if not 1 <= self.connections <= (self.most_connections or 64) <= 64:
            raise ValueError("connections is at least 1 and at most most_connections, which is at most 64")
        _check_packets(self.chunk, self.mtu)


def _check_packets(chunk: int | None, mtu: int | None) -> None:
    if chunk is not None and chunk < 1:
        raise ValueError(f"chunk is at least 1 value, got {chunk}")
    if mtu is not None and not 576 <= mtu <= 65_535:
        raise ValueError(f"mtu is 576 to 65,535 bytes, got {mtu}")


@dataclass(frozen=True)
class ConfigFile:
    """The settings of a file, each of which has a default."""

    switches: SwitchesTable = field(default_factory=SwitchesTable)
    controller: ControllerTable = field(default_factory=ControllerTable)
    agent: AgentTable = field(default_factory=AgentTable)
    sites: SitesTable = field(default_factory=SitesTable)
    overlay: OverlayTable = field(default_factory=OverlayTable)


KINDS: dict[object, tuple[tuple[type, ...], str]] = {
    str: ((str,), "a text in quotes"),
    bool: ((bool,), "true or false"),
    int: ((int,), "a whole number"),
    float: ((int, float), "a number"),
    Path: ((str,), "a path in quotes"),
    Program: ((str,), "a program's name or folder in quotes"),
}
"""For the type of a setting, the types of TOML that it may have, and words for them."""


def read_config(path: Path) -> ConfigFile:
    """Return the settings of a file. Raise ConfigFileError, which names the setting and what it must be, for anything
    that cannot be used."""
    try:
        data = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigFileError(f"cannot read {path}: {getattr(error, 'strerror', None) or 'it is not text'}") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigFileError(f"{path} is not TOML: {error}") from None
    tables = get_type_hints(ConfigFile)
    if unknown := unknown_name(data, tables):
        raise ConfigFileError(f"{path}: {unknown.replace('attribute', 'table', 1)}")
    for name, content in data.items():
        if not isinstance(content, dict):
            raise ConfigFileError(f"{path}: {name} is a table: write [{name}], and its settings below")
    return ConfigFile(**{name: _table(tables[name], content, path, name) for name, content in data.items()})


def _table(kind: type[Table], content: dict[str, Any], path: Path, name: str) -> Table:
    types = get_type_hints(kind)
    known = [one.name for one in fields(kind)]  # type: ignore[arg-type]  # all tables are dataclasses
    if unknown := unknown_name(content, known):
        raise ConfigFileError(f"{path}: [{name}]: {unknown.replace('attribute', 'setting', 1)}")
    made: dict[str, Any] = {}
    for key, value in content.items():
        wanted = next(each for each in (types[key], *getattr(types[key], "__args__", ())) if each in KINDS)
        accepted, words = KINDS[wanted]
        if not isinstance(value, accepted) or (isinstance(value, bool) and wanted is not bool):
            raise ConfigFileError(f"{path}: [{name}] {key} must be {words}, got {value!r}")
        if wanted is Path:
            value = path.parent / str(value)
        elif wanted is Program and os.sep in str(value):
            value = str(path.parent / str(value))
        made[key] = value
    try:
        return kind(**made)
    except ValueError as error:
        raise ConfigFileError(f"{path}: [{name}]: {error}") from None


def add_config_argument(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Add the option --config, whose value is a ConfigFile."""

    def read(text: str) -> ConfigFile:
        try:
            return read_config(Path(text))
        except ConfigFileError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    parser.add_argument(
        "--config", type=read, default=ConfigFile(), metavar="FILE", help="the site's settings, TOML (docs/deploy.md)"
    )
