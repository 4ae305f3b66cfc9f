"""P4Runtime's messages and gRPC stub, from the official `p4runtime` package, whose modules an old protoc generated."""

from __future__ import annotations

from typing import TYPE_CHECKING

# P4Runtime's descriptors refer to these modules.
from google.protobuf import any_pb2  # noqa: F401
from google.rpc import status_pb2  # noqa: F401

from controlplane.targets import gencode

if TYPE_CHECKING:
    from p4.config.v1 import p4info_pb2
    from p4.v1 import p4runtime_pb2, p4runtime_pb2_grpc
else:
    gencode.load("p4.config.v1", "p4types_pb2")
    p4info_pb2 = gencode.load("p4.config.v1", "p4info_pb2")
    gencode.load("p4.v1", "p4data_pb2")
    p4runtime_pb2 = gencode.load("p4.v1", "p4runtime_pb2")
    from p4.v1 import p4runtime_pb2_grpc

__all__ = ["p4info_pb2", "p4runtime_pb2", "p4runtime_pb2_grpc"]
