"""The model of masked sums: they are exact, show nothing of who gave what, and go on when a worker is lost."""

from __future__ import annotations

import numpy as np
import pytest

from evaluation.secure_sums import Operation, Worker, added, partners

LENGTH = 4096


@pytest.fixture(params=[1 << 30, 4], ids=["all others", "four partners"])
def workers(request: pytest.FixtureRequest) -> list[Worker]:
    return [Worker(number, request.param) for number in range(7)]


def values_of(worker: int) -> np.ndarray:
    """Values near the ends of what fixed point uses, of both signs."""
    return np.random.default_rng(worker).integers(-(2**28), 2**28, LENGTH, dtype=np.int32)


def sent(workers: list[Worker], operation: Operation) -> dict[int, np.ndarray]:
    publics = {worker.number: worker.public for worker in workers}
    by_number = {worker.number: worker for worker in workers}
    return {one: by_number[one].send(operation, values_of(one), publics) for one in operation.members}


def exact(members: tuple[int, ...]) -> np.ndarray:
    return np.sum([values_of(one).astype(np.int64) for one in members], axis=0)


def test_sum_of_all_is_exact_in_any_grouping(workers: list[Worker]) -> None:
    members = tuple(range(7))
    masked = sent(workers, Operation(1, 0, members))
    racks = [added(masked[one] for one in (0, 3)), added(masked[one] for one in (6, 1, 4)), masked[5], masked[2]]
    assert np.array_equal(added(racks).view(np.int32), exact(members))


def test_without_one_nothing_can_be_read(workers: list[Worker]) -> None:
    """What switches and the root see of fewer than all looks random, also where the values are all zero."""
    publics = {worker.number: worker.public for worker in workers}
    operation = Operation(1, 0, tuple(range(7)))
    masked = [worker.send(operation, np.zeros(LENGTH, np.int32), publics) for worker in workers]
    for seen in (masked[2], added(masked[:6])):
        assert abs(np.unpackbits(seen.view(np.uint8)).mean() - 0.5) < 0.01
        assert len(np.unique(seen)) > LENGTH - 10


def test_when_a_worker_is_lost_the_others_add_up_in_a_new_epoch(workers: list[Worker]) -> None:
    """What the lost one has sent helps nobody: its masks of the old epoch are not those of the new one."""
    old = sent(workers, Operation(1, 0, tuple(range(7))))
    left = (0, 1, 2, 4, 5, 6)
    new = sent(workers, Operation(2, 0, left))
    assert np.array_equal(added(new.values()).view(np.int32), exact(left))
    for one in left:
        difference = (old[one] - new[one]).view(np.uint8)
        assert abs(np.unpackbits(difference).mean() - 0.5) < 0.01, "two masks, of which nothing cancels"
    with_late = added([*new.values(), old[3]])
    assert not np.array_equal(with_late.view(np.int32), exact(tuple(range(7))))


def test_a_mask_is_never_used_for_other_values(workers: list[Worker]) -> None:
    publics = {worker.number: worker.public for worker in workers}
    operation = Operation(1, 0, tuple(range(7)))
    first = workers[0].send(operation, values_of(0), publics)
    assert np.array_equal(workers[0].send(operation, values_of(0), publics), first), "a resend is the same"
    with pytest.raises(ValueError, match="has had other values"):
        workers[0].send(operation, values_of(1), publics)


@pytest.mark.parametrize("count", [2, 3, 5, 8, 13])
def test_partners_are_mutual(count: int) -> None:
    members = tuple(range(0, 2 * count, 2))
    for one in members:
        assert one not in partners(one, members, 4)
        assert all(one in partners(other, members, 4) for other in partners(one, members, 4))
