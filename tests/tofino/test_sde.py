"""Finding the SDE's client and the message where it is missing; our wire description compared with the SDE's own."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterator

import pytest

from controlplane.targets.bri import sde
from controlplane.targets.bri.program import fixed_tables
from controlplane.targets.bri.sde import SdeMissing
from tests.support.gencode import old_protoc
from tests.tofino.wire import bri_wire_pb2


@pytest.mark.parametrize("value", ["", "/no/such/folder", "EMPTY"])
def test_missing_parts_are_reported_with_how_to_get_them(value, tmp_path, monkeypatch):
    monkeypatch.setenv("SDE_INSTALL", str(tmp_path) if value == "EMPTY" else value)
    with pytest.raises(SdeMissing, match=r"SDE_INSTALL") as missing:
        sde.load_client()
    expected = {"": "is not set", "/no/such/folder": "which is no folder", "EMPTY": "which has no BRI client"}
    assert expected[value] in str(missing.value)
    assert "https://github.com/p4lang/open-p4studio" in str(missing.value)


@pytest.mark.parametrize("place", ["lib/python3.8/site-packages/tofino", "lib/python3.11/site-packages"])
def test_client_is_found_where_sdes_put_it(place, tmp_path, monkeypatch):
    package = tmp_path / place / "bfrt_grpc"
    package.mkdir(parents=True)
    (package / "client.py").touch()
    monkeypatch.setenv("SDE_INSTALL", str(tmp_path))
    assert sde.client_folder() == tmp_path / place


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("import no_such_package_at_all", r"cannot be imported: No module named 'no_such_package_at_all'"),
        ("raise TypeError('Descriptors cannot be created directly.')", "generate bfruntime_pb2.py again"),
    ],
)
def test_client_that_cannot_be_imported_is_explained(content, message, tmp_path, monkeypatch):
    package = tmp_path / "lib/python3.11/site-packages/tofino/bfrt_grpc"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "client.py").write_text(content)
    monkeypatch.setenv("SDE_INSTALL", str(tmp_path))
    monkeypatch.setattr(sys, "path", [*sys.path])
    with no_client_loaded():
        # This goes before another SDE that this process may have loaded.
        sys.path.insert(0, str(package.parent))
        with pytest.raises(SdeMissing, match=message):
            sde.load_client()


@contextlib.contextmanager
def no_client_loaded() -> Iterator[None]:
    """Make the process look as if it had not loaded the SDE's client, and restore it afterwards."""
    before = {name: module for name, module in sys.modules.items() if name.split(".")[0] == "bfrt_grpc"}
    for name in before:
        del sys.modules[name]
    try:
        yield
    finally:
        for name in [name for name in sys.modules if name.split(".")[0] == "bfrt_grpc"]:
            del sys.modules[name]
        sys.modules.update(before)


def test_messages_of_an_old_protoc_are_loaded(tmp_path, monkeypatch):
    """An SDE that was built with the protoc of its time has such messages: present protobuf does not run them as they
    are.
    """
    package = tmp_path / "lib/python3.8/site-packages/tofino/bfrt_grpc"
    package.mkdir(parents=True)
    for name, content in {
        "__init__.py": "",
        "client.py": "from bfrt_grpc.bfruntime_pb2_grpc import bfruntime__pb2 as bfruntime_pb2",
        "bfruntime_pb2_grpc.py": "from . import bfruntime_pb2 as bfruntime__pb2",
        "bfruntime_pb2.py": old_protoc(bri_wire_pb2.DESCRIPTOR.serialized_pb),
    }.items():
        (package / name).write_text(content)
    monkeypatch.setenv("SDE_INSTALL", str(tmp_path))
    monkeypatch.setattr(sys, "path", [str(package.parent), *sys.path])
    with no_client_loaded():
        messages = sde.load_client().bfruntime_pb2
    request = messages.WriteRequest(client_id=7)
    request.updates.add(type=messages.Update.INSERT).entity.table_entry.table_id = 5
    assert bri_wire_pb2.WriteRequest.FromString(request.SerializeToString()) == request


needs_sde = pytest.mark.skipif(
    not os.environ.get("SDE_INSTALL"), reason="needs $SDE_INSTALL (open-p4studio or Intel's SDE) and its bfrt_grpc"
)


@needs_sde
def test_messages_have_the_sdes_names_numbers_and_types():
    theirs = sde.load_client().bfruntime_pb2.DESCRIPTOR
    ours = bri_wire_pb2.DESCRIPTOR

    def check(mine, real) -> None:
        for field in mine.fields:
            if mine.name == "Subscribe" and field.name == "status":
                continue  # This type is google.rpc.Status in the SDE.
            other = real.fields_by_name[field.name]
            kind = (field.number, field.type, field.is_repeated)
            assert (other.number, other.type, other.is_repeated) == kind, f"{mine.full_name}.{field.name}"
        for enum in mine.enum_types:
            assert {v.name: v.number for v in enum.values} == {
                v.name: v.number for v in real.enum_types_by_name[enum.name].values
            }
        for nested in mine.nested_types:
            check(nested, real.nested_types_by_name[nested.name])

    for name, message in ours.message_types_by_name.items():
        if name != "Status":
            check(message, theirs.message_types_by_name[name])


@needs_sde
def test_service_has_the_sdes_methods():
    from tests.tofino.wire.stubs import SERVICE

    (service,) = sde.load_client().bfruntime_pb2.DESCRIPTOR.services_by_name.values()
    assert service.full_name == SERVICE
    assert {method.name for method in service.methods} == {
        "Write",
        "Read",
        "SetForwardingPipelineConfig",
        "GetForwardingPipelineConfig",
        "StreamChannel",
    }


@needs_sde
@pytest.mark.parametrize(("name", "tables"), [("bf_rt_port_tf1.json", 3), ("bf_rt_pre_tf1.json", 2)])
def test_fixed_tables_are_the_sdes(name, tables):
    """Ids, keys and data of the fixed-function tables that we describe ourselves are those of the SDE."""
    from pathlib import Path

    from controlplane.targets.bri.schema import Schema

    file = Path(os.environ["SDE_INSTALL"], "share", "bf_rt_shared", name)
    if not file.is_file():
        pytest.skip(f"{file} is not there")
    theirs, compared = Schema.load(file), 0
    for table in fixed_tables().tables.values():
        if table.name not in theirs.tables:
            continue
        real = theirs.tables[table.name]
        compared += 1
        assert (table.id, table.size, table.kind) == (real.id, real.size, real.kind)
        assert {(k.name, k.id, k.bits, k.match) for k in table.keys.values()} == {
            (k.name, k.id, k.bits, k.match) for k in real.keys.values()
        }
        for field in table.data.values():
            other = real.data[field.name]
            assert (field.id, field.kind, field.bits, field.repeated, field.mandatory, field.read_only) == (
                other.id, other.kind, other.bits, other.repeated, other.mandatory, other.read_only
            )  # fmt: skip
            assert set(field.choices) <= set(other.choices)
    assert compared == tables


def test_nothing_of_the_sde_is_in_the_repository():
    assert re.search(r"Intel|SPDX", bri_wire_pb2.DESCRIPTOR.serialized_pb.decode("latin1")) is None
