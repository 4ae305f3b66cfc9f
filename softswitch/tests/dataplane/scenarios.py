"""The scenarios that are recorded from bmv2: one per test program, made from a fixed seed."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator

from softswitch.tests.dataplane.scenario import Frames, Row, Scenario

WIDTHS = (2, 3, 7, 8, 9, 13, 16, 17, 24, 31, 32, 33, 47, 48, 63, 64, 65, 96, 100, 127, 128)
PADS = (4, 2, 2, 8, 6, 6, 8, 6, 8, 2, 8, 6, 2, 8, 2, 8, 6, 8, 8, 2, 8)


def arithmetic_frame(width: int, pad: int, a: int, b: int, n: int) -> bytes:
    """Return the test program's request: operands ``a`` and ``b`` of ``width`` bits and a shift amount."""
    bits = 2 * width + 8 + pad
    value = ((a << width | b) << 8 | n) << pad
    return bytes([width]) + value.to_bytes(bits // 8, "big") + b"payload after it"


def arithmetic(seed: int = 1, per_width: int = 14) -> Scenario:
    """Return a scenario with corner values and random ones, at every width."""
    source = random.Random(seed)
    frames: Frames = []
    for width, pad in zip(WIDTHS, PADS, strict=True):
        top, sign = (1 << width) - 1, 1 << (width - 1)
        corners = [0, 1, top, sign, sign - 1]
        pairs = [(0, 0), (top, top), (sign, sign), (sign, 1), (sign - 1, 1), (top, 1), (1, top), (sign, sign - 1)]
        while len(pairs) < per_width:
            pairs.append((source.choice([*corners, source.getrandbits(width)]), source.getrandbits(width)))
        for a, b in pairs:
            n = source.choice([0, 1, width - 1, width, width + 1, source.randrange(256)])
            frames.append((1, arithmetic_frame(width, pad, a, b, n)))
    frames += [(1, b"\x63" + bytes(20)), (1, bytes([128]) + bytes(30)), (1, bytes([128]) + bytes(33))]
    return Scenario("arithmetic", (1,), frames=frames)


def ethernet(destination: int, source: int, ether_type: int, vlan: int | None = None) -> bytes:
    tag = b"" if vlan is None else struct.pack(">HH", 0x8100, vlan)
    return destination.to_bytes(6, "big") + source.to_bytes(6, "big") + tag + ether_type.to_bytes(2, "big")


def checksum(data: bytes) -> int:
    """Return the Internet checksum (RFC 1071)."""
    total = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total ^ 0xFFFF


def ipv4(
    source: int, destination: int, protocol: int = 17, ttl: int = 64, payload: bytes = b"", *, bad: bool = False,
    version: int = 4, options: bytes = b"",
) -> bytes:  # fmt: skip
    words = 5 + len(options) // 4
    head = struct.pack(
        ">BBHHHBBHII", version << 4 | words, 0, 20 + len(options) + len(payload), 7, 0, ttl, protocol, 0, source,
        destination,
    )  # fmt: skip
    right = checksum(head + options)
    head = head[:10] + (right ^ (0x1234 if bad else 0)).to_bytes(2, "big") + head[12:]
    return head + options + payload


def sums(seed: int = 2, values: int = 32) -> Scenario:
    """Return a scenario with stores, sums, maxima, reads and saturating sums over few slots, extreme values, broken
    packets.
    """
    source = random.Random(seed)
    head = ethernet(0x020000000001, 0x020000000002, 0x1234)
    frames: Frames = []
    for _ in range(60):
        extreme = source.random() < 0.3
        numbers = [
            source.choice([0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF]) if extreme else source.getrandbits(32)
            for _ in range(values)
        ]
        command = struct.pack(">I", source.choice([0, 1, 1, 2, 3, 4, 4, 9]) << 24 | source.choice([0, 1, 1023]))
        frames.append((source.choice([1, 2]), head + command + struct.pack(f">{values}I", *numbers) + b"tail"))
    whole = frames[0][1]
    frames += [(1, whole[:n]) for n in (14, 17, 18, 18 + 4 * values - 1)]
    return Scenario("sums", (1, 2), frames=frames)


CPU = 500
HOSTS = {port: (0x020000000000 | port, 0x0A000000 | port << 8 | 1) for port in (1, 2, 3)}


def router_configuration() -> Scenario:
    """Return routes, an ACL with priorities, multicast, clones and loops on ports 1 to 3 and the CPU port."""
    any_acl = (None, None, None, None, None)

    def acl(action: str, params: tuple[int, ...], priority: int, **match: tuple[object, ...]) -> Row:
        names = ("source", "protocol", "port", "ingress", "passes")
        keys = tuple(match.get(name, old) for name, old in zip(names, any_acl, strict=True))
        return Row("MyIngress.acl", keys, f"MyIngress.{action}", params, priority)

    rows = [
        Row("MyIngress.switching", (("exact", 0x020000000002), ("exact", 0)), "MyIngress.forward", (2,)),
        Row("MyIngress.switching", (("exact", 0xFFFFFFFFFFFF), ("exact", 0)), "MyIngress.flood", (10,)),
        Row("MyIngress.switching", (("exact", 0xFFFFFFFFFFFF), ("exact", 1)), "MyIngress.flood", (11,)),
        Row("MyIngress.switching", (("exact", 0x030000000000), ("exact", 0)), "MyIngress.flood", (99,)),
        Row("MyIngress.switching", (("exact", 0x020000000009), ("exact", 0)), "MyIngress.drop"),
        Row("MyIngress.routes", (("lpm", 0x0A000000, 8),), "MyIngress.drop"),
        Row("MyIngress.routes", (("lpm", 0x0A000100, 24),), "MyIngress.route", (0xFE, HOSTS[1][0], 1)),
        Row("MyIngress.routes", (("lpm", 0x0A000200, 24),), "MyIngress.route", (0xFE, HOSTS[2][0], 2)),
        Row("MyIngress.routes", (("lpm", 0x0A000280, 25),), "MyIngress.route", (0xFD, HOSTS[3][0], 3)),
        Row("MyIngress.routes", (("lpm", 0x0B000000, 8),), "MyIngress.balance", (5, 3)),
        Row("MyIngress.routes", (("lpm", 0x0C000001, 32),), "MyIngress.balance", (6, 1)),
        *[Row("MyIngress.members", (("exact", 5), ("exact", i)), "MyIngress.route", (0xFE, 0xA0 + i, 1 + i))
          for i in range(3)],
        acl("deny", (), 100, source=("ternary", 0x0A0003FF, 0xFFFFFFFF)),
        acl("copy_to_cpu", (3,), 50, port=("range", 50, 60)),
        acl("punt", (4,), 60, port=("range", 55, 55), ingress=("optional", 3)),
        acl("again", (), 70, protocol=("ternary", 17, 0xFF), port=("range", 7000, 7999), passes=("ternary", 0, 0xFE)),
        acl("cut", (40,), 10, protocol=("ternary", 0x80, 0x80)),
        acl("deny", (), 5, ingress=("optional", 2), port=("range", 9000, 65535)),
        Row("MyEgress.ports", (("exact", 3), None, ("exact", 0)), "MyEgress.set_vlan", (77,), 10),
        Row("MyEgress.ports", (("exact", 1), None, ("exact", 1)), "MyEgress.loop", (), 10),
        Row("MyEgress.ports", (("exact", 3), None, ("exact", 1)), "MyEgress.strip_vlan", (), 10),
        Row("MyEgress.ports", (("exact", 2), ("ternary", 5, 0xFFFF), ("exact", 0)), "MyEgress.prune", (), 20),
        Row("MyEgress.ports", (("exact", 2), ("ternary", 4, 0xFFFC), ("exact", 0)), "MyEgress.mirror", (), 10),
        Row("MyEgress.ports", (("exact", 2), ("ternary", 0, 0), ("exact", 1)), "MyEgress.mirror", (), 5),
    ]  # fmt: skip
    return Scenario(
        "router",
        (1, 2, 3, CPU),
        rows,
        groups={10: [(1, 1), (2, 5), (2, 6), (3, 9)], 11: [(1, 1), (2, 2)]},
        sessions={7: [(CPU, 1)], 8: [(CPU, 2), (3, 4)]},
    )


def _router_frames(source: random.Random) -> Iterator[tuple[int, bytes]]:
    destinations = [0x0A000101, 0x0A000201, 0x0A000281, 0x0A000301, 0x0B010203, 0x0B010204, 0x0C000001]
    for _ in range(200):
        port = source.choice([1, 2, 3])
        protocol = source.choice([6, 17, 17, 1, 0x85])
        ports = struct.pack(">HH", source.randrange(65536), source.choice([53, 55, 57, 61, 7000, 7000, 9500, 80, 80]))
        payload = ports + source.randbytes(source.choice([0, 1, 2, 30]))
        packet = ipv4(
            source.choice([0x0A000105] * 5 + [0x0A0003FF, 0x01020304]),
            source.choice(destinations) if source.random() < 0.9 else source.getrandbits(32),
            protocol,
            source.choice([64, 64, 64, 65, 65, 1, 0, 2, 255]),
            payload,
            bad=source.random() < 0.04,
            version=4 if source.random() < 0.97 else 6,
            options=b"" if source.random() < 0.93 else bytes(8),
        )
        vlan = None if source.random() < 0.7 else source.choice([5, 5, 0x0FF, 0x100, 0xFFF])
        others = [0x020000000002, 0xFFFFFFFFFFFF, 0xFFFFFFFFFFFF, 0x020000000009, 0x030000000000]
        mac = source.choice([0xFE] * 8 + others)
        yield port, ethernet(mac, HOSTS[port][0], 0x0800 if source.random() < 0.93 else 0x0806, vlan) + packet
    whole = ethernet(0xFE, 1, 0x0800, 5) + ipv4(0x01020304, 0x0A000101, 6, 64, bytes(8))
    for length in range(14, len(whole), 3):
        yield 1, whole[:length]
    for port in (1, 2, 3):
        yield CPU, struct.pack(">H", port << 7) + ethernet(1, 2, 0x0800) + ipv4(1, 2, 17, 9, b"payload")


def router(seed: int = 3) -> Scenario:
    """Return a scenario with every feature of the router, and broken packets."""
    scenario = router_configuration()
    scenario.frames = list(_router_frames(random.Random(seed)))
    return scenario


def label(number: int, bottom: int, ttl: int) -> bytes:
    """Return one element of the features program's header stack."""
    return struct.pack(">I", number << 12 | bottom << 8 | ttl)


def features(seed: int = 4) -> Scenario:
    """Return a scenario with stacks of all depths, wide slices and registers, hashes, look-ahead, and broken
    packets.
    """
    source = random.Random(seed)
    frames: Frames = []

    def command(operation: int, index: int, value: int) -> bytes:
        return struct.pack(">BBH", operation, index, value)

    for _ in range(90):
        depth = source.choice([1, 1, 2, 2, 3, 4, 4, 5])
        ttls = [source.choice([255, *range(1, 250)]) for _ in range(depth)]
        stack = b"".join(label(source.getrandbits(20), i + 1 == depth, ttl) for i, ttl in enumerate(ttls))
        operation = source.choice([0, 1, 2, 3, 4, 5, 6])
        frames.append((1, command(operation, source.randrange(256), source.getrandbits(16)) + stack + b"and a payload"))
    for _ in range(110):
        operation = source.choice([0x10, 0x11, 0x12, 0x12, 0x13, 0x14, 0x14, 0x15, 0x15])
        blob = source.choice([source.randbytes(26), bytes(26), b"\xff" * 26])
        payload = source.randbytes(source.randrange(0, 40))
        head = command(operation, source.randrange(4), source.getrandbits(16))
        if operation == 0x13 and source.random() < 0.7:
            body = head[:2] + payload + b"\0" * (len(payload) % 2)
            head = head[:2] + checksum(body).to_bytes(2, "big")
        frames.append((1, head + blob + payload))
    for _ in range(30):
        skip = source.choice([0, 1, 2, 4, 30, 200])
        ahead = source.choice([b"\x11", b"\x12"]) + source.choice([b"\x12\x34", b"\x56\x78"])
        rest = ahead + source.randbytes(source.randrange(45, 80))
        frames.append((1, command(0x20, skip, source.getrandbits(16)) + rest))
        limits = [0, 999, 1000, 1001, 65535]
        frames.append((1, command(0x30, source.choice([0, 1, 6, 7]), source.choice(limits)) + rest))
    whole = command(0x10, 1, 2) + bytes(range(26))
    frames += [(1, whole[:n]) for n in range(14, 30, 3)]
    frames += [(1, (command(1, 0, 0) + label(5, 0, 9) * 5)[:n]) for n in range(14, 24, 2)]
    return Scenario("features", (1,), frames=frames)


def matching_frame(a: int, b: int, c: int, d: int, e: int) -> bytes:
    """Return a frame with the keys of the matching program."""
    return struct.pack(">IH", a, b << 7 | c) + d.to_bytes(16, "big") + e.to_bytes(8, "big") + b"rest"


def matching(seed: int = 5) -> Scenario:
    """Return a scenario with few distinct keys, so that entries overlap, and frames that hit, nearly hit and miss
    them.
    """
    source = random.Random(seed)
    a_values = [0, 1, 0x0A000001, 0x0A000002, 0x0A010000, 0xFFFFFFFF]
    d_values = [0, 1, 1 << 127, (1 << 128) - 1, 0x20010DB8 << 96, 0x20010DB8 << 96 | 1]
    rows: dict[tuple[object, ...], Row] = {}

    def add(table: str, match: tuple[tuple[object, ...] | None, ...], priority: int = 0) -> None:
        row = Row(f"MyIngress.{table}", match, "MyIngress.answer", (len(rows) + 100,), priority)
        rows.setdefault((table, match, priority), row)

    for _ in range(30):
        add("exact_one", (("exact", source.choice(a_values[:5])),))
        add("exact_many", (("exact", source.randrange(3)), ("exact", source.choice(d_values[:4])), ("exact", 5)))
        length = source.choice([0, 8, 15, 16, 24, 31, 32])
        value = source.choice(a_values) >> (32 - length) << (32 - length)
        add("prefix", (("lpm", value, length),))
        length = source.choice([0, 1, 32, 64, 127, 128])
        value = source.choice(d_values) >> (128 - length) << (128 - length)
        add("prefix_wide", (("exact", source.randrange(2)), ("lpm", value, length)))
    for i in range(40):
        mask = source.choice([0, 0xFFFFFFFF, 0xFF000000, 0x0000FFFF, 1])
        a = ("ternary", source.choice(a_values) & mask, mask) if mask else None
        e = source.choice([None, ("ternary", 1 << 63, 1 << 63), ("ternary", 0, 1)])
        c = source.choice([None, ("optional", 5), ("optional", 0)])
        add("masked", (a, e, ("exact", source.randrange(2)), c), 1 + i)
        low = source.choice(a_values)
        high = source.choice([x for x in a_values if x >= low])
        span = source.choice([None, ("range", 0, 1), ("range", 1, 511)])
        add("ranged", (("range", low, high), span, source.choice([None, ("ternary", 4, 0x7C)])), 1 + i)
    rows[("wide",)] = Row("MyIngress.exact_one", (("exact", 0xFFFFFFFF),), "MyIngress.wide", (d_values[5], 99, 7))
    frames: Frames = []
    for _ in range(150):
        key_a = source.choice([*a_values, source.getrandbits(32)])
        key_e = source.choice([0, 1, 1 << 63, source.getrandbits(64)])
        key_c = source.choice([0, 1, 5, 4])
        frame = matching_frame(key_a, source.choice([0, 1, 2, 7]), key_c, source.choice(d_values), key_e)
        frames.append((1, frame))
    return Scenario("matching", (1,), list(rows.values()), frames=frames)


ALL = {"arithmetic": arithmetic, "features": features, "matching": matching, "router": router, "sums": sums}
