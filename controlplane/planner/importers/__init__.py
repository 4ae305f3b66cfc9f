"""Importers: topology files of other projects, one module per format.

Each module returns a `Foreign`: nodes and links, as far as a file has them. `build.py`, their common part, adds the
data that the file lacks, which the user gives (`Supplement`), and makes a Topology.
"""

from __future__ import annotations

import logging
from pathlib import Path

from controlplane.common.inputs import parse_json
from controlplane.planner.importers import batfish, cable_lists, containerlab, graphml, lldp, node_link
from controlplane.planner.importers.build import Foreign, Imported, Supplement, build
from controlplane.planner.topology import Topology, TopologyError

__all__ = ["Imported", "import_file", "load", "read_foreign", "split"]

logger = logging.getLogger("inart")
MOST_BYTES = 16 << 20
"""Largest file of another project in bytes."""
OWN = (b'"kind"', b'_mbps"')
"""Words that only our own topology files have, of which each has one."""
OPTIONS = ("unit", "bandwidth", "servers", "adding")
"""Names of the data that the user may give behind a file's name."""


def split(spec: str) -> tuple[Path, str]:
    """Return the path of a topology file, and the data behind its name (FILE:servers=1,bandwidth=10000)."""
    head, colon, options = spec.rpartition(":")
    return (Path(head), options) if colon and not Path(spec).exists() else (Path(spec), "")


def load(spec: str) -> Topology:
    """Return the topology in a file, ours or another project's, as `import_file` does; notes go to the log. Raise
    TopologyError if it is wrong or lacks data.
    """
    path, options = split(spec)
    found = read_foreign(path)
    if found is None:
        if options:
            raise TopologyError(f"{path} is a topology file that takes no data behind its name, got {options!r}")
        return Topology.load(path)
    topology, notes = _build(path, found, _supplement(spec, options))
    logger.warning(f"{path}: {'; '.join(notes)}")
    return topology


def import_file(spec: str, **given: str) -> Imported:
    """Return the topology in another project's file, or in a folder of LLDP neighbours, with notes for the user. Data
    that the file lacks are behind its name, or in `given` (by `OPTIONS`). Raise TopologyError if the file is of no
    known format or wrong, or if data are missing.
    """
    path, options = split(spec)
    supplement = _supplement(spec, options, **given)
    found = read_foreign(path)
    if found is None:
        Topology.load(path)  # raises what is wrong with it
        raise TopologyError(f"{path} is a topology file already; --topology takes it as it is")
    return _build(path, found, supplement)


def _supplement(spec: str, options: str, **given: str) -> Supplement:
    values = {key: value for key, value in given.items() if value}
    for part in filter(None, options.split(",")):
        key, equals, value = part.partition("=")
        if not equals or not value or key not in OPTIONS:
            raise TopologyError(f"{spec}: unknown part {part!r}; known: {', '.join(f'{one}=' for one in OPTIONS)}")
        if key in values:
            raise TopologyError(f"{spec}: {key}= is given twice")
        values[key] = value
    try:
        return Supplement.parse(**values)
    except TopologyError as error:
        raise TopologyError(f"{spec}: {error}") from None


def _build(path: Path, found: Foreign, supplement: Supplement) -> Imported:
    try:
        return build(found, supplement, path.name.partition(".")[0])
    except TopologyError as error:
        raise TopologyError(f"{path}: {error}") from None


def read_foreign(path: Path) -> Foreign | None:
    """Return the network in another project's file, as far as the file describes it; None if the file is not another
    project's as far as its content shows. Raise TopologyError if it is wrong.
    """
    try:
        return lldp.read_folder(path) if path.is_dir() else _read(path, path.read_bytes())
    except OSError as error:
        raise TopologyError(f"cannot read topology file {path}: {error.strerror}") from None
    except TopologyError as error:
        raise TopologyError(f"{path}: {error}") from None


def _read(path: Path, content: bytes) -> Foreign | None:
    start = content.removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
    if start == b"{" and any(word in content for word in OWN):
        return None
    if len(content) > MOST_BYTES:
        raise TopologyError(f"it has {len(content)} bytes; files of other projects are read up to {MOST_BYTES} bytes")
    if path.suffix == ".gml":
        raise TopologyError("GML is not read; Topology Zoo and topohub have the same networks in GraphML and JSON")
    if start == b"<":
        return graphml.read(content)
    if path.suffix == ".csv":
        return cable_lists.read(content, path)
    if path.suffix in (".yml", ".yaml"):
        return containerlab.read(content)
    if start != b"{":
        return None
    try:
        data = parse_json(content)
    except ValueError:
        return None  # Topology.load says what is wrong
    if "lldp" in data:
        return lldp.read({path.stem: data})
    if "edges" in data and "nodes" not in data:
        return batfish.read(data)
    return node_link.read(data) if "nodes" in data else None
