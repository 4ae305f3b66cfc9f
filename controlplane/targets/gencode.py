"""Loads modules that any protoc generated, under any protobuf from version 4 on.

Protobuf runs code that a protoc before 3.20 generated only in pure Python, if at all, and code of a later protoc only
in some versions. The descriptor in such code is always valid: the module is built from that, as generated code of today
builds itself. (softswitch has a copy: it is a package of its own, and neither may need the other.)
"""

from __future__ import annotations

import ast
import re
import sys
from importlib.resources import files
from types import ModuleType

from google.protobuf import descriptor_pool
from google.protobuf.internal import builder

# The serialized descriptor as protoc writes it before 3.20, and since.
_DESCRIPTOR = re.compile(r"(?:^  serialized_pb=|AddSerializedFile\()(b'.*')", re.MULTILINE)


def load(package: str, name: str) -> ModuleType:
    """Return the module `package`.`name`, which other modules (the gRPC stub beside it) can then import.

    The modules that it imports must be loaded before. Raise ImportError where it is missing or was not generated.
    """
    full_name = f"{package}.{name}"
    if full_name in sys.modules:
        return sys.modules[full_name]
    source = files(package) / f"{name}.py"
    descriptor = _DESCRIPTOR.search(source.read_text()) if source.is_file() else None
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
