"""Which path the steps of a process group take, and what is under way, each without ranks."""

from __future__ import annotations

import pytest
import torch

from worker_agent.collectives import collective
from worker_agent.errors import AbortedError
from worker_agent.metrics import Counts
from worker_agent.torch.result import Completion
from worker_agent.torch.schedule import Schedule
from worker_agent.torch.steps import Item
from worker_agent.torch.under_way import UnderWay


def test_steps_change_their_path_at_the_step_that_no_rank_has_begun() -> None:
    schedule = Schedule()
    schedule.use(network=True)
    first, second = schedule.begin(aside=False), schedule.begin(aside=False)
    assert (schedule.pause(), first.network, second.network) == (2, True, True)
    schedule.resume((3, False))  # another rank has begun one more
    third, fourth = schedule.begin(aside=False), schedule.begin(aside=False)
    assert (third.network, fourth.network) == (True, False)
    assert schedule.changing and not schedule.in_network
    for step in (first, second, third):
        assert schedule.changing
        assert schedule.is_oldest(step)
        schedule.end(step)
    assert not schedule.changing
    assert schedule.in_question == 3, "what had begun when a step failed is settled one by one"


def test_a_step_that_begins_while_ranks_agree_gets_its_path_afterwards() -> None:
    schedule = Schedule()
    schedule.use(network=False)
    begun = schedule.pause()
    held, aside = schedule.begin(aside=False), schedule.begin(aside=True)
    assert held.network is None and aside.network is None
    schedule.resume((begun, True))
    for step in (held, aside):
        schedule.decide(step)
    assert (held.network, aside.network) == (True, False)
    assert schedule.begin(aside=False).network
    assert schedule.in_question == 0, "a return leaves nothing in question"


def test_ranks_that_could_not_agree_keep_their_path() -> None:
    schedule = Schedule()
    schedule.use(network=True)
    schedule.pause()
    held = schedule.begin(aside=False)
    schedule.resume()
    schedule.decide(held)
    assert held.network and not schedule.changing


def test_an_abort_ends_what_is_under_way_and_refuses_what_comes() -> None:
    schedule, under_way = Schedule(), UnderWay(Counts())
    schedule.use(network=True)
    buffer = torch.zeros(4)
    items = [Item(schedule.begin(False), buffer, collective("sum"), True, Completion(buffer)) for _ in range(2)]
    for item in items:
        under_way.add(item)
    under_way.finish(items[0], None)
    assert items[0].completion.future.value() is buffer
    under_way.check()
    under_way.refuse(AbortedError("a rank is gone"))
    under_way.end_all()
    with pytest.raises(AbortedError, match="a rank is gone"):
        items[1].completion.wait()
    with pytest.raises(AbortedError, match="a rank is gone"):
        under_way.check()
