"""The same random members, groups, one-shot sets and entries on softswitch and bmv2 lead to the same choices.

``PROFILE_STEPS=400 PROFILE_SEEDS=8 pytest -k profiles_bmv2`` runs it for longer.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import grpc
import pytest

from softswitch.p4runtime.stubs import p4runtime_pb2 as p4rt
from softswitch.tests.conformance.control import DELETE, INSERT, MODIFY, Controller
from softswitch.tests.conformance.targets import TARGETS, Switch
from softswitch.tests.support.switches import missing

PROGRAMS = Path(__file__).parents[1] / "conformance" / "programs"
STEPS = int(os.environ.get("PROFILE_STEPS", "75"))
SEEDS = int(os.environ.get("PROFILE_SEEDS", "1"))
TABLES = {"shared": ("lpm_table", "ternary_table"), "small": ("small_table",)}
LARGEST = {"shared": 3, "small": 1}  # weight of a member, so that bmv2's groups stay within their max_size
IDS = range(1, 7)
PERIOD = 25  # steps between checks with packets

pytestmark = pytest.mark.skipif(missing("bmv2") is not None, reason=missing("bmv2") or "")


@contextmanager
def started(target: str) -> Iterator[tuple[Switch, Controller]]:
    config, info = (PROGRAMS / "profiles.json").read_bytes(), (PROGRAMS / "profiles.p4info.txtpb").read_text()
    switch = TARGETS[target](config, [0, 1])
    try:
        controller = Controller(switch.address, info, config)
        try:
            yield switch, controller
        finally:
            controller.close()
    finally:
        switch.close()


class Steps:
    """Random writes that bmv2 accepts, too; groups have members that exist, since bmv2 keeps a group that it
    refused.
    """

    def __init__(self, rng: random.Random, controller: Controller) -> None:
        self.rng = rng
        self.members: dict[str, set[int]] = {"shared": set(), "small": set()}
        info = controller.info
        self.profiles = {p.preamble.alias: p.preamble.id for p in info.action_profiles}
        self.tables = {t.preamble.alias: t.preamble.id for t in info.tables}
        self.actions = {a.preamble.alias: a.preamble.id for a in info.actions}

    def next(self) -> tuple[int, p4rt.Entity]:
        rng, profile = self.rng, self.rng.choice(("shared", "small"))
        draw = rng.random()
        if draw < 0.3 or not self.members[profile]:
            kind, member = rng.choice((INSERT, INSERT, MODIFY, DELETE)), p4rt.ActionProfileMember()
            member.action_profile_id, member.member_id = self.profiles[profile], rng.choice(IDS)
            member.action.CopyFrom(self.action(rng.choice(("set", "set", "both"))))
            return kind, p4rt.Entity(action_profile_member=member)
        if draw < 0.55:
            group = p4rt.ActionProfileGroup(action_profile_id=self.profiles[profile], group_id=rng.randrange(1, 4))
            group.max_size = 4 if profile == "small" else 0
            present = sorted(self.members[profile])
            for number in rng.sample(present, min(len(present), rng.randrange(1, 4))):
                group.members.add(member_id=number, weight=rng.randint(1, LARGEST[profile]))
            return rng.choice((INSERT, MODIFY, MODIFY, DELETE)), p4rt.Entity(action_profile_group=group)
        if draw < 0.8:
            entry = self.entry(rng.choice(TABLES[profile]))
            if rng.random() < 0.6:
                entry.action.action_profile_group_id = rng.randrange(1, 4)
            else:
                entry.action.action_profile_member_id = rng.choice(IDS)
        else:
            entry = self.entry("counted_table")
            for _ in range(rng.randrange(1, 4)):
                entry.action.action_profile_action_set.action_profile_actions.add(
                    action=self.action("set"), weight=rng.randrange(1, 4)
                )
        return rng.choice((INSERT, INSERT, MODIFY, DELETE)), p4rt.Entity(table_entry=entry)

    def action(self, name: str) -> p4rt.Action:
        action = p4rt.Action(action_id=self.actions[name])
        for param in range(1, 3 if name == "both" else 2):
            action.params.add(param_id=param, value=bytes([self.rng.randrange(1, 256)]))
        return action

    def entry(self, table: str) -> p4rt.TableEntry:
        entry = p4rt.TableEntry(table_id=self.tables[table])
        match, value = entry.match.add(field_id=1), bytes([self.rng.randrange(1, 5)])
        if table == "lpm_table":
            match.lpm.value, match.lpm.prefix_len = value, 32
        elif table == "ternary_table":
            match.ternary.value, match.ternary.mask, entry.priority = value, b"\xff\xff\xff\xff", 1
        else:
            match.exact.value = value
        return entry

    def done(self, kind: int, entity: p4rt.Entity) -> None:
        for name, number in self.profiles.items():
            if entity.action_profile_member.action_profile_id == number:
                change = self.members[name].discard if kind == DELETE else self.members[name].add
                change(entity.action_profile_member.member_id)

    def frames(self) -> list[bytes]:
        keys = ((which, key) for which in (1, 2, 3, 4) for key in range(1, 5) for _ in range(6))
        return [bytes([which, 0, 0, 0, key]) + self.rng.randbytes(4) + b"\0\0" for which, key in keys]


def accepted(controller: Controller, kind: int, entity: p4rt.Entity) -> bool:
    which = entity.WhichOneof("entity")
    try:
        controller.write(kind, **{which: getattr(entity, which)})
    except grpc.RpcError:
        return False
    return True


def comparable(frame: bytes) -> bytes:
    """Return the part of a frame to compare: at a miss bmv2 skips a switch over action_run, where P4 takes its
    default.
    """
    return frame[:10] if frame[0] == 2 and frame[10] in (0, 0xA0) else frame


@pytest.mark.parametrize("seed", range(SEEDS))
def test_the_same_members(seed: int) -> None:
    with ExitStack() as stack:
        pairs = [stack.enter_context(started(target)) for target in ("softswitch", "bmv2")]
        steps = Steps(random.Random(seed), pairs[0][1])
        sent = 0
        for step in range(1, STEPS + 1):
            kind, entity = steps.next()
            ours, theirs = (accepted(controller, kind, entity) for _, controller in pairs)
            assert ours == theirs, (step, kind, entity)
            if ours:
                steps.done(kind, entity)
            if step % PERIOD:
                continue
            for i, frame in enumerate(steps.frames(), 1):
                for switch, _ in pairs:
                    switch.send(0, frame)
                sent += 1
                end = time.monotonic() + 5
                while i % 8 == 0 and len(pairs[1][0].received().get(1, [])) < sent and time.monotonic() < end:
                    time.sleep(0.002)
            mine, other = ([comparable(f) for f in switch.received().get(1, [])] for switch, _ in pairs)
            assert mine == other, step
