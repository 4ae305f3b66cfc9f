"""Labels that nobody can guess: a keyed permutation, which is applied in the switch target and in the agents'
configurations.
"""

from __future__ import annotations

import itertools
import random

import pytest

from controlplane.planner.entries import Aggregate, Forward, LabelEntry, RuleSet
from controlplane.service.epochs import EpochStore
from controlplane.service.room import first_label, job_of
from controlplane.targets.base import Change, InstallError, Operation, UpdateFailure, difference, empty
from controlplane.targets.secret import SecretTarget
from controlplane.targets.secret_labels import SecretLabels
from tests.support.memory import MemoryTarget

KEY = bytes(range(32))
HIGHEST = (1 << 32) - 1


def test_every_label_stands_for_one_number_and_is_never_zero():
    labels = SecretLabels(KEY)
    draws = random.Random(1)
    numbers = [1, 2, HIGHEST, *(draws.randint(1, HIGHEST) for _ in range(20_000))]
    of_zero = labels.back(0)  # This is the only number for which the Feistel network alone gives 0.
    numbers.append(of_zero)
    seen = {labels.label(number) for number in numbers}
    assert len(seen) == len(set(numbers)) and all(0 < label <= HIGHEST for label in seen)
    assert all(labels.number(labels.label(number)) == number for number in numbers)
    assert labels.label(0) == labels.number(0) == 0, "no label stays no label"


def test_labels_differ_by_key_and_neighbours_are_unrelated():
    one, two = SecretLabels(KEY), SecretLabels(KEY[::-1])
    first = [one.label(number) for number in range(1, 1001)]
    assert not set(first) & {two.label(number) for number in range(1, 1001)}
    halves = {label >> 16 for label in first}
    assert len(halves) > 900, "numbers of one job do not have one upper half on the wire"
    bits = [(a ^ b).bit_count() for a, b in itertools.pairwise(first)]
    assert 15 < sum(bits) / len(bits) < 17, "about half of all bits change from a number to the next"


def test_labels_are_the_same_after_a_restart_and_others_with_another_secret(tmp_path):
    there = EpochStore(tmp_path).labels().labels(range(1, 100))
    assert EpochStore(tmp_path).labels().labels(range(1, 100)) == there
    assert EpochStore(tmp_path / "another").labels().labels(range(1, 100)) != there
    assert EpochStore(tmp_path).key(0) not in repr(there)


def rules(low: int) -> RuleSet:
    action = Aggregate(0, 63, 1, 3, low + 2, low + 3, 4)
    return RuleSet("s1", (LabelEntry(1, low, action), LabelEntry(2, low + 1, Forward(3))), (), ())


def test_a_switch_holds_labels_and_the_controller_reads_numbers():
    inner = MemoryTarget("s1")
    labels = SecretLabels(KEY)
    target = SecretTarget(inner, labels)
    wanted = rules(first_label(5))
    target.apply(difference(empty("s1"), wanted))
    assert target.read() == wanted and {job_of(entry.label) for entry in target.read().labels} == {5}
    held = {entry.label: entry.action for entry in inner.read().labels}
    assert held.keys() == {labels.label(entry.label) for entry in wanted.labels}
    sums = next(action for action in held.values() if isinstance(action, Aggregate))
    assert (sums.next_label, sums.partial_label) == labels.labels((first_label(5) + 2, first_label(5) + 3))
    assert not difference(target.read(), wanted), "what is there is found, and nothing is written again"


def test_a_refusal_names_the_label_number():
    class Refusing(MemoryTarget):
        def apply(self, changes):
            raise InstallError("s1", [UpdateFailure(changes[0], "ALREADY_EXISTS", "there")], len(changes))

    target = SecretTarget(Refusing("s1"), SecretLabels(KEY))
    with pytest.raises(InstallError, match="port 2, label 7 ") as caught:
        target.apply([Change(Operation.INSERT, LabelEntry(2, 7, Forward(1)))])
    assert caught.value.failures[0].message == "there"
