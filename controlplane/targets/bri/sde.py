"""Finds the Python client of the SDE (open-p4studio, or Intel's) in the folder $SDE_INSTALL."""

from __future__ import annotations

import importlib
import logging
import os
import sys
from pathlib import Path
from typing import Any

# The descriptors of the SDE's messages refer to this module.
from google.rpc import status_pb2  # noqa: F401

from controlplane.targets import gencode
from controlplane.targets.base import TargetError

VARIABLE = "SDE_INSTALL"
CLIENT, MESSAGES = "bfrt_grpc/client.py", "bfrt_grpc/bfruntime_pb2.py"
PLACES = ("lib/python*/site-packages/tofino", "lib/python*/site-packages", "lib64/python*/site-packages/tofino")
HOW_TO_GET = """\
The SDE is P4 Studio: build open-p4studio (https://github.com/p4lang/open-p4studio, its README says how), then
  export SDE=/path/to/open-p4studio; export SDE_INSTALL=$SDE/install
With --dry-run everything is checked and printed without it. See docs/tofino.md."""


class SdeMissing(TargetError):
    """No usable SDE was found; the message says what is missing and how to get it."""


def client_folder() -> Path:
    """Return the folder in $SDE_INSTALL that has the package `bfrt_grpc`. Raise SdeMissing where there is none."""
    given = os.environ.get(VARIABLE)
    if not given:
        raise SdeMissing(
            f"${VARIABLE} is not set: installing on Tofino needs the SDE's BRI client (bfrt_grpc).\n{HOW_TO_GET}"
        )
    root = Path(given)
    if not root.is_dir():
        raise SdeMissing(f"${VARIABLE} is {given}, which is no folder.\n{HOW_TO_GET}")
    for place in PLACES:
        for folder in sorted(root.glob(place), reverse=True):
            if (folder / CLIENT).is_file():
                return folder
    looked = ", ".join(f"{place}/{CLIENT}" for place in PLACES)
    raise SdeMissing(
        f"${VARIABLE} is {given}, which has no BRI client (looked for {looked}): was the SDE built with gRPC (profiles "
        f"with bf-drivers do that)?\n{HOW_TO_GET}"
    )


def load_client() -> Any:
    """Import and return the module `bfrt_grpc.client`. Raise SdeMissing where that fails.

    Its folder goes to the end of sys.path, so that gRPC and protobuf stay those of this environment.
    """
    folder = client_folder()
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    try:
        if (folder / MESSAGES).is_file():
            gencode.load("bfrt_grpc", "bfruntime_pb2")
        client = importlib.import_module("bfrt_grpc.client")
    except ImportError as error:
        raise SdeMissing(
            f"the SDE's BRI client in {folder} cannot be imported: {error}. "
            f"It needs grpcio, protobuf, googleapis-common-protos and six in {sys.executable} (make setup)"
        ) from None
    except TypeError as error:
        raise SdeMissing(
            f"the SDE's BRI client in {folder} cannot be imported: its generated code does not suit this environment's "
            f"protobuf ({str(error).splitlines()[0]}); generate bfruntime_pb2.py again with protoc 3.21"
        ) from None
    # The SDE's client logs every step to stderr, but errors reach us as exceptions.
    for name in ("bfruntime_grpc_client", "bfruntime_parse"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return client
