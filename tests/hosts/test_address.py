"""An agent uses the network interfaces that it is given, or else those that have its node's address."""

from __future__ import annotations

import pytest

from controlplane.common.agentconfig import AgentConfig
from worker_agent import address
from worker_agent.errors import AgentError


def config(*links: str) -> AgentConfig:
    return AgentConfig("job", 1, 1, "h1", "worker", 0, ("h1",), ("s1",), 256, address="10.0.0.1", links=links)


@pytest.fixture
def here(monkeypatch):
    """Interfaces of this machine, with their addresses."""
    found = [("10.0.0.1", "lo"), ("10.0.0.1", "eth10"), ("10.0.0.1", "eth9"), ("192.0.2.1", "ctl0")]
    monkeypatch.setattr(address, "own_addresses", lambda: found)
    return found


def test_all_that_have_the_address_are_used_in_the_order_of_their_names(here):
    assert address.interfaces_of(config("a1", "a2"), None) == "eth9,eth10"


def test_given_ones_are_used_in_the_given_order(here):
    assert address.interfaces_of(config("a1", "a2"), "eth10,ctl0") == "eth10,ctl0"


def test_interfaces_stay_the_same_when_the_plan_has_lost_a_link(here):
    assert address.interfaces_of(config(), None) == address.interfaces_of(config("", "a2"), None) == "eth9,eth10"


def test_too_few_are_refused_with_what_to_give(here):
    with pytest.raises(AgentError, match=r"3 links to the data network, to a1, a2, a3.*--interface NAME,NAME"):
        address.interfaces_of(config("a1", "a2", "a3"), None)
    with pytest.raises(AgentError, match="there is only eth9"):
        address.interfaces_of(config("a1", "a2"), "eth9")


def test_loopback_is_used_where_nothing_else_has_the_address(here):
    del here[1:3]
    assert address.interfaces_of(config(), None) == "lo"


def test_no_interface_with_the_address_is_named_with_what_there_is(here):
    del here[:3]
    with pytest.raises(AgentError, match=r"192\.0\.2\.1 on ctl0"):
        address.interfaces_of(config("a1", "a2"), None)
