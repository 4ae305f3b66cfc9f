"""Generates Python code as a protoc before 3.20 did."""

from __future__ import annotations

from google.protobuf import text_encoding


def old_protoc(descriptor: bytes) -> str:
    """Return the module of a .proto file with this serialized descriptor, as far as present protobuf runs such
    modules.
    """
    escaped = text_encoding.CEscape(descriptor, as_utf8=False)
    return f"""\
from google.protobuf import descriptor as _descriptor

DESCRIPTOR = _descriptor.FileDescriptor(
  name='some.proto',
  serialized_options=None,
  serialized_pb=b'{escaped}'
  )

_MESSAGE = _descriptor.Descriptor(name='Message', full_name='Message', filename=None, file=DESCRIPTOR)
"""
