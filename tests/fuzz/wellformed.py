"""Repairs random frames so that they are well formed for our own program. A random walk of its parser nearly never is,
and what comes after the checks of version and lengths would never be reached.
"""

from __future__ import annotations

import random
import re
import struct
from collections.abc import Sequence

from p4src.protocol import HEADER_OFFSET, IPV4_OFFSET, PROTOCOL, UDP_OFFSET, VERSION, frame_bytes
from softswitch.tests.conformance.stf import Add, Statement
from tests.fuzz.packets import Frame
from tests.model.packet import envelope

ARTIFACT = re.compile(r"p4src/artifacts/v1model-(\d+)/")
TABLE = "label_table"
LABEL = PROTOCOL.field("label")


def repair(
    program: str, frame: Frame, source: random.Random, ports: Sequence[int], statements: Sequence[Statement] = ()
) -> Frame:
    """Return a frame for the program at this path. If the program is ours, the frame is mostly an aggregation packet
    with the right length, length fields and version, and often with the port (one of ``ports``) and label of an entry
    in ``statements``.
    """
    found = ARTIFACT.search(program)
    if found is None or source.random() < 0.25:
        return frame
    port, data = frame
    values = int(found.group(1))
    if source.random() < 0.5:
        data = envelope(values) + data[HEADER_OFFSET:]
    out = bytearray(data)
    if source.random() < 0.75:
        length = frame_bytes(values)
        out = out[:length] + source.randbytes(max(0, length - len(out)))
    if len(out) <= HEADER_OFFSET:
        return port, bytes(out)
    struct.pack_into(">H", out, IPV4_OFFSET + 2, len(out) - IPV4_OFFSET)
    struct.pack_into(">H", out, UDP_OFFSET + 4, len(out) - UDP_OFFSET)
    out[HEADER_OFFSET] = VERSION
    entries = [dict(s.keys) for s in statements if isinstance(s, Add) and s.table == TABLE]
    keys = [(int(entry["ingress_port"], 0), int(entry["label"], 0)) for entry in entries]
    there = [key for key in keys if key[0] in ports]
    if there and len(out) >= LABEL.offset + LABEL.size and source.random() < 0.75:
        port, label = source.choice(there)
        out[LABEL.offset : LABEL.offset + LABEL.size] = label.to_bytes(LABEL.size, "big")
    return port, bytes(out)
