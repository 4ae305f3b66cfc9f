"""The finsy sessions of test_finsy.py, run with the Python of an environment that has finsy.

finsy brings its own messages, and protobuf accepts those only once per process. Arguments: address, folder with the
programs. Prints a line for each thing that worked.
"""

from __future__ import annotations

import asyncio
import base64
import sys
from pathlib import Path
from typing import Any

import finsy as fy  # type: ignore[import-not-found]


async def tables(address: str, folder: Path) -> None:
    options = fy.SwitchOptions(p4info=folder / "demo.p4info.txtpb", p4blob=folder / "demo.json", p4force=True)
    async with fy.Switch("demo", address, options) as switch:
        print("pipeline", switch.is_primary)
        entry = fy.P4TableEntry(
            "exact_table",
            match=fy.P4TableMatch({"hdr.eth.dst": 2, "standard_metadata.ingress_port": 1}),
            action=fy.P4TableAction("forward", port=5),
        )
        acl = fy.P4TableEntry(
            "acl",
            match=fy.P4TableMatch({"hdr.ipv4.protocol": "6/&0xff", "meta.port": "80...443", "hdr.ipv4.valid": 1}),
            action=fy.P4TableAction("drop"),
            priority=10,
        )
        route = fy.P4TableEntry(
            "lpm_table",
            match=fy.P4TableMatch({"hdr.ipv4.dst": "10.0.0.0/8"}),
            action=fy.P4TableAction("route", mac=10, port=3),
        )
        await switch.insert([entry, acl, route])
        read = [e.table_id async for e in switch.read(fy.P4TableEntry()) if not e.is_default_action]
        print("entries", *sorted(read))
        try:
            await switch.insert([entry])
        except fy.P4ClientError as error:
            print("refused", error.code.name, [detail.canonical_code.name for detail in error.details.values()])
        await switch.delete([entry])
        print("deleted", [e.table_id async for e in switch.read(entry)])
        default = fy.P4TableEntry("keyless", action=fy.P4TableAction("forward", port=4), is_default_action=True)
        await switch.modify([default])
        group = fy.P4MulticastGroupEntry(1, replicas=((1, 1), (2, 1)))
        session = fy.P4CloneSessionEntry(100, class_of_service=0, packet_length_bytes=64, replicas=(255,))
        await switch.insert([group, session])
        print("groups", [g.replicas async for g in switch.read(fy.P4MulticastGroupEntry(1))])
        await switch.modify([fy.P4RegisterEntry("sums", index=2, data=77)])
        print("register", [r.data async for r in switch.read(fy.P4RegisterEntry("sums", index=2))])
        print("counter", [c.packet_count async for c in switch.read(fy.P4CounterEntry("verdicts", index=7))])
        packets = switch.read_packets()
        waiting = asyncio.ensure_future(_first(packets))
        await asyncio.sleep(0)  # until it listens
        await switch.write([fy.P4PacketOut(bytes(60), egress_port=255, reason=0)])  # the port of the controller itself
        packet = await asyncio.wait_for(waiting, 10)
        print("packet-in", packet["ingress_port"], len(packet.payload))
        print("counter", [c.packet_count async for c in switch.read(fy.P4CounterEntry("verdicts", index=7))])


async def digests(address: str, folder: Path) -> None:
    options = fy.SwitchOptions(p4info=folder / "digests.p4info.txtpb", p4blob=folder / "digests.json", p4force=True)
    async with fy.Switch("digests", address, options) as switch:
        name = next(iter(switch.p4info.digests)).alias
        await switch.insert([fy.P4DigestEntry(name, max_list_size=1, max_timeout_ns=0, ack_timeout_ns=10**9)])
        waiting = asyncio.ensure_future(_first(switch.read_digests(name)))
        await asyncio.sleep(0)
        frame = bytes.fromhex("000000000001 000000000123 8005") + bytes(46)
        await switch.write([fy.pbutil.from_dict({"packet": {"payload": _base64(frame)}}, _request_type())])
        learned = await asyncio.wait_for(waiting, 10)
        print("digest", learned[0]["src"])
        await switch.write([learned.ack()])


async def arbitration(address: str) -> None:
    """The second client finds the first one's election id in use, takes the one below, and is the backup."""
    changed = asyncio.Event()
    async with fy.Switch("second", address, fy.SwitchOptions()) as alone:
        print("alone", alone.is_primary)
    first = fy.Switch("first", address, fy.SwitchOptions())
    second = fy.Switch("second", address, fy.SwitchOptions())
    second.ee.add_listener(fy.SwitchEvent.BECOME_PRIMARY, lambda _: changed.set())
    async with first:
        opened = asyncio.ensure_future(second.__aenter__())
        await asyncio.wait_for(opened, 10)
        print("backup", first.is_primary, second.is_primary)
    await asyncio.wait_for(changed.wait(), 30)
    print("takes over", second.is_primary)
    await second.__aexit__(None, None, None)


async def _first(stream: Any) -> Any:
    async for item in stream:
        return item
    raise RuntimeError("the stream ended")


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _request_type() -> Any:
    from finsy.proto import p4r  # type: ignore[import-not-found]

    return p4r.StreamMessageRequest


async def main() -> None:
    address, folder = sys.argv[1], Path(sys.argv[2])
    await tables(address, folder)
    await digests(address, folder)
    await arbitration(address)


asyncio.run(main())
