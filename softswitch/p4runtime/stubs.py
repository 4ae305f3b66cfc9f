"""P4Runtime's messages and gRPC stub, from the official ``p4runtime`` package, under any protobuf from version 4 on.

A protoc of 2020 generated the modules of that package, and protobuf runs such code only in pure Python, if at all. The
descriptors in them are always good: this module builds the message modules from the descriptors, as generated code of
today builds itself.
"""

from __future__ import annotations

import ast
import re
import sys
from importlib.resources import files
from types import ModuleType
from typing import TYPE_CHECKING

# P4Runtime's descriptors refer to `any` and `status`.
from google.protobuf import any_pb2, descriptor_pool  # noqa: F401
from google.protobuf.internal import builder
from google.rpc import status_pb2  # noqa: F401

# The serialized descriptor as protoc writes it before 3.20, and since.
_DESCRIPTOR = re.compile(r"(?:^  serialized_pb=|AddSerializedFile\()(b'.*')", re.MULTILINE)


def load(package: str, name: str) -> ModuleType:
    """Build a module, and put it into ``sys.modules``, where the package's gRPC stub imports it."""
    full_name = f"{package}.{name}"
    if full_name in sys.modules:
        return sys.modules[full_name]
    source = files(package) / f"{name}.py"
    descriptor = _DESCRIPTOR.search(source.read_text())
    if descriptor is None:
        raise ImportError(f"{source} is not what protoc generates", name=full_name)
    module = ModuleType(full_name, f"Built from the descriptor in {source}.")
    file = descriptor_pool.Default().AddSerializedFile(ast.literal_eval(descriptor[1]))
    module.DESCRIPTOR = file  # type: ignore[attr-defined]
    builder.BuildMessageAndEnumDescriptors(file, vars(module))
    builder.BuildTopDescriptorsAndMessages(file, full_name, vars(module))
    sys.modules[full_name] = module
    setattr(sys.modules[package], name, module)
    return module


if TYPE_CHECKING:
    from p4.config.v1 import p4info_pb2, p4types_pb2
    from p4.v1 import p4data_pb2, p4runtime_pb2, p4runtime_pb2_grpc
else:
    p4types_pb2 = load("p4.config.v1", "p4types_pb2")
    p4info_pb2 = load("p4.config.v1", "p4info_pb2")
    p4data_pb2 = load("p4.v1", "p4data_pb2")
    p4runtime_pb2 = load("p4.v1", "p4runtime_pb2")
    from p4.v1 import p4runtime_pb2_grpc

__all__ = ["p4data_pb2", "p4info_pb2", "p4runtime_pb2", "p4runtime_pb2_grpc", "p4types_pb2"]
