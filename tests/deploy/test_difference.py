"""Changes between rule sets, applied one by one to a model of a switch."""

from __future__ import annotations

from hypothesis import given, settings

from controlplane.planner.entries import LabelEntry, MulticastGroup, Replicate, RuleSet
from controlplane.targets.base import Change, Operation, difference, empty
from tests.deploy.rules import rule_sets, small


def key(item):
    return item.kind, item.key


def contents(rules: RuleSet) -> dict:
    return {key(item): normal(item) for item in rules.items()}


def normal(item):
    return MulticastGroup(item.group, tuple(sorted(item.ports))) if isinstance(item, MulticastGroup) else item


def apply_strictly(state: dict, changes: list[Change]) -> None:
    """Apply a change as a switch would: no insert over an existing entry, no change without effect, no replicate
    without its group.
    """
    for change in changes:
        place = key(change.item)
        if change.operation is Operation.INSERT:
            assert place not in state
        else:
            assert place in state
        if change.operation is Operation.DELETE:
            del state[place]
        else:
            state[place] = normal(change.item)
        for item in state.values():
            if isinstance(item, LabelEntry) and isinstance(item.action, Replicate):
                assert ("groups", item.action.group) in state


@given(rule_sets(), rule_sets())
@settings(max_examples=150, deadline=None)
def test_changes_lead_from_one_to_the_other_over_valid_states(current, wanted):
    state = contents(current)
    apply_strictly(state, difference(current, wanted))
    assert state == contents(wanted)


@given(rule_sets())
@settings(max_examples=50, deadline=None)
def test_equal_rule_sets_need_no_changes(rules):
    assert difference(rules, rules) == []


def test_order_of_a_groups_ports_is_no_difference():
    one = RuleSet("s1", (), (MulticastGroup(1, (1, 2)),), ())
    assert difference(one, RuleSet("s1", (), (MulticastGroup(1, (2, 1)),), ())) == []


def test_new_version_is_there_before_the_old_goes():
    changes = difference(small("s1", 1), small("s1", 100))
    kinds = [change.operation for change in changes]
    assert kinds == sorted(kinds, key=lambda kind: kind is Operation.DELETE)
    assert len(changes) == 6


def test_emptying_takes_everything():
    assert all(change.operation is Operation.DELETE for change in difference(small("s1"), empty("s1")))
    assert len(difference(small("s1"), empty("s1"))) == 6
