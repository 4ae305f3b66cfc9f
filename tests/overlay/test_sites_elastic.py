"""Sites that join, leave, fall behind and come back: which sites take part, with which state, and that no sum is
wrong.
"""

from __future__ import annotations

import json
import re
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from controlplane.planner.plan.task import Sending, Task, task_of
from controlplane.planner.strategies.wan.policy import Abort, Finished, Lost, Ready, Reject, Start, Tick
from controlplane.planner.strategies.wan.site_rounds import SiteRounds
from overlay.core.errors import Behind, Late, OverlayError
from overlay.core.site_network import SiteNetwork, direct_pairs, slots
from overlay.net.losses import Losses
from overlay.net.site_metrics import metrics_of
from overlay.net.site_services import State, digest_of
from overlay.sites import SiteGroup, init
from overlay.sites.command import SiteSettings, make_coordinator
from overlay.sites.packing import BITS, bits_a_value, levels, pack, scales_of, unpack, width
from tests.overlay.test_agents import until
from tests.overlay.test_sites import coordinating

VALUES = 5000


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


def joined(coordinator, name: str, timeout: float = 60.0) -> SiteGroup:
    group = init(f"127.0.0.1:{coordinator.address[1]}", name, listen="127.0.0.1:0", timeout=timeout)
    assert group is not None
    return group


def state(fill: int) -> np.ndarray:
    return np.full(200_003, fill, np.uint8)


def begun(coordinator, names: str) -> dict[str, SiteGroup]:
    """Return sites that have agreed on a state before round 0."""
    groups = {name: joined(coordinator, name) for name in names}
    with ThreadPoolExecutor(len(groups)) as pool:
        assert {each.data[0] for each in pool.map(lambda group: group.agree(state(1), 0), groups.values())} == {1}
    return groups


def averaged(groups: dict[str, SiteGroup], number: int, bits: int = 32) -> dict[str, tuple[np.ndarray, object]]:
    """Run one round: each site submits its number; the mean must be exactly that of the sites that took part."""

    def one(name: str) -> tuple[np.ndarray, object]:
        values = np.full(VALUES, ord(name), np.float32)
        found = groups[name].average(values, round=number, weight=2.0, bits=bits)
        groups[name].offer(state(number + 2), number + 1)
        return values, found

    with ThreadPoolExecutor(len(groups)) as pool:
        found = dict(zip(groups, pool.map(one, groups), strict=True))
    for values, about in found.values():
        wanted = np.mean([ord(site) for site in about.sites])
        np.testing.assert_allclose(values, wanted, rtol=1e-2 if bits < 32 else 1e-6)
        assert np.array_equal(values, next(iter(found.values()))[0])
    return found


def test_a_site_that_is_lost_is_left_out_and_one_that_joins_gets_the_state():
    with coordinating(3, probe_seconds=0) as (coordinator, lines):
        groups = begun(coordinator, "abc")
        assert averaged(groups, 0)["a"][1].sites == ("a", "b", "c")
        groups.pop("c").agent.close()
        assert averaged(groups, 1)["a"][1].sites == ("a", "b")
        late = joined(coordinator, "d")
        taken = late.agree(state(9), 0)  # It has an old model, from before round 0.
        assert taken.round == 2 and np.array_equal(taken.data, state(3))
        groups["d"] = late
        assert averaged(groups, 2, bits=8)["d"][1].sites == ("a", "b", "d")
        assert any("d takes the state of" in line for line in lines)
        for group in groups.values():
            group.close()


@pytest.mark.parametrize("had", [False, True], ids=["its state took longer", "the round had begun before it had it"])
def test_a_site_that_missed_a_round_with_the_state_of_others_is_waited_for_the_second_time(had):
    """Else it would fetch one state after the other as long as rounds are shorter than that takes."""
    with coordinating(2, probe_seconds=0) as (coordinator, _), ThreadPoolExecutor(2) as pool:
        groups = begun(coordinator, "ab")
        averaged(groups, 0)
        late = joined(coordinator, "c")
        service = late.agent.site
        assert service.here(State(0, "old", state(9))).result(60)["round"] == 1
        if had:
            assert service.here(State(1, digest_of(state(2)), state(2))).result(60)["from"] is None
            coordinator.loop.call_soon_threadsafe(coordinator.policy.active.discard, "c")  # as where round 1 has begun
        averaged(groups, 1)  # meanwhile
        assert service.here(State(1, digest_of(state(2)), state(2))).result(60)["round"] == 2
        futures = [pool.submit(group.average, np.full(VALUES, 1.0, np.float32), round=2) for group in groups.values()]
        until(lambda: coordinator.policy.missing() == ["c"])
        assert late.agree(state(2), 1).round == 2
        assert late.average(np.full(VALUES, 4.0, np.float32), round=2).sites == ("a", "b", "c")
        assert all(future.result(60).sites == ("a", "b", "c") for future in futures)
        for group in (*groups.values(), late):
            group.close()


def test_the_first_round_waits_for_a_site_that_is_slow_to_take_the_first_ones_state():
    with coordinating(3, probe_seconds=0) as (coordinator, _), ThreadPoolExecutor(4) as pool:
        groups = {name: joined(coordinator, name) for name in "abc"}
        first = pool.submit(groups["a"].agree, state(1), 0)
        asked = [groups[name].agent.site.here(State(0, digest_of(state(9)), state(9))) for name in "bc"]
        assert [each.result(60)["from"] for each in asked] == ["a", "a"]
        assert first.result(60).data[0] == 1
        alone = pool.submit(groups["a"].average, np.full(VALUES, 1.0, np.float32), round=0)
        until(lambda: coordinator.policy.missing() == ["b", "c"])
        assert groups["b"].agree(state(9), 0).data[0] == 1
        groups.pop("c").agent.close()  # Lost before it has the state: the others go on.
        values = np.full(VALUES, 3.0, np.float32)
        assert groups["b"].average(values, round=0).sites == alone.result(60).sites == ("a", "b")
        assert values[0] == 2.0
        for group in groups.values():
            group.close()


def test_a_restarted_site_with_an_old_model_adds_nothing():
    with coordinating(2, probe_seconds=0) as (coordinator, _):
        groups = begun(coordinator, "ab")
        averaged(groups, 0)
        groups.pop("b").agent.close()
        averaged(groups, 1)
        back = joined(coordinator, "b")
        with pytest.raises(Behind, match="it needs their state"):
            back.average(np.zeros(VALUES, np.float32), round=0)
        assert back.agree(state(1), 0).round == 2
        groups["b"] = back
        assert averaged(groups, 2)["b"][1].sites == ("a", "b")


def test_a_site_is_lost_in_the_middle_of_a_round_and_the_others_do_it_again():
    with coordinating(3, probe_seconds=0) as (coordinator, _):
        groups = begun(coordinator, "abc")
        averaged(groups, 0)
        gone = groups.pop("c")
        make_task = coordinator.policy.make_task

        def make_task_and_lose_c(participants, heads):
            """The sum is decided on, and nobody has been told yet: so nobody can have its result without c."""
            task = make_task(participants, heads)
            if task.op == "words" and "c" in participants:
                gone.agent.close()
            return task

        coordinator.policy.make_task = make_task_and_lose_c
        with ThreadPoolExecutor(3) as pool:
            large = {name: np.full(3_000_000, ord(name), np.float32) for name in "abc"}
            futures = {
                name: pool.submit((groups.get(name) or gone).average, large[name], round=1, bits=8) for name in "abc"
            }
            done = [futures[name].result(60) for name in "ab"]
            with pytest.raises(OverlayError):
                futures["c"].result(60)
        assert done[0].sites == done[1].sites == ("a", "b") and np.array_equal(large["a"], large["b"])
        np.testing.assert_allclose(large["a"], (ord("a") + ord("b")) / 2, rtol=1e-2)


def test_a_slow_site_is_not_waited_for_longer_than_patience_and_catches_up():
    with coordinating(3, probe_seconds=0, patience=0.5) as (coordinator, _):
        groups = begun(coordinator, "abc")
        slow = groups.pop("c")
        assert averaged(groups, 0)["a"][1].sites == ("a", "b")
        with pytest.raises(Behind):
            slow.average(np.zeros(VALUES, np.float32), round=0)
        assert slow.agree(state(1), 0).round == 1


def test_missing_sites_are_reported():
    no_name = pytest.raises(OverlayError, match="is no name of a site")
    with coordinating(1, probe_seconds=0) as (coordinator, _), no_name:
        joined(coordinator, "two words")
    late = pytest.raises(Late, match="have not said whose state to take within 1 s; a joined")
    with coordinating(2, probe_seconds=0) as (coordinator, _), late:
        joined(coordinator, "a", timeout=1.0).agree(state(1), 0)
    with coordinating(2, probe_seconds=0) as (coordinator, _):
        groups = begun(coordinator, "ab")
        coordinator.policy.allows = lambda sites: len(sites) > 1  # Another coordinator may have b.
        groups["a"].timeout = 1.0
        with pytest.raises(Late, match="b has submitted nothing"):
            groups["a"].average(np.zeros(VALUES, np.float32), round=0)


def test_a_coordinator_that_restarts_knows_the_group_again_and_its_network():
    with coordinating(2, probe_seconds=0.05) as (coordinator, _):
        groups = begun(coordinator, "ab")
        averaged(groups, 0)
        port, pairs = coordinator.address[1], dict(coordinator.desk.network.pairs)
    lines: list[str] = []
    again = make_coordinator(
        "127.0.0.1", port, SiteSettings(2, probe_seconds=600.0), SiteNetwork(256), log=lines.append
    )
    with again as coordinator:
        assert averaged(groups, 1)["a"][1].sites == ("a", "b"), "no round waits for measurements"
        assert coordinator.desk.network.pairs == pairs and len(pairs) == 2, lines
        groups["c"] = joined(coordinator, "c")
        until(lambda: coordinator.desk.survey is not None)


def test_sites_whose_states_differ_before_the_same_round_are_found():
    with coordinating(3, probe_seconds=0) as (coordinator, lines):
        groups = begun(coordinator, "abc")
        groups["c"].offer(state(77), 0)
        until(lambda: any("c has another state than most" in line for line in lines))
        with pytest.raises(Behind), ThreadPoolExecutor(1) as pool:
            pool.submit(groups["c"].average, np.zeros(VALUES, np.float32), round=0).result(60)
        assert groups["c"].agree(state(77), 0).data[0] == 1


def values_of(text: str) -> dict[tuple[str, ...], float]:
    """Return the values of a text in Prometheus' format, by name and values of labels."""
    families = text_string_to_metric_families(text)
    return {(one.name, *one.labels.values()): one.value for family in families for one in family.samples}


def test_without_prometheus_client_the_metrics_say_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "overlay.net.site_metrics", None)
    with coordinating(2, probe_seconds=0) as (coordinator, _):
        with pytest.raises(HTTPError, match="501") as refused:
            urlopen("http://{}:{}/metrics".format(*coordinator.address), timeout=30)
        assert b"pip install 'inart[overlay]'" in refused.value.read()


def test_prometheus_and_the_page_are_told_how_far_the_sites_are():
    with coordinating(2, probe_seconds=0.05) as (coordinator, _):
        groups = begun(coordinator, "ab")
        averaged(groups, 0)
        where = "http://{}:{}".format(*coordinator.address)
        until(lambda: coordinator.desk.record.counts["rounds"] == 1)
        found = {}
        for path in ("metrics", "", "static/sites.js", "static/page.css", "api/status"):
            with urlopen(f"{where}/{path}", timeout=30) as answer:
                found[path] = answer.read().decode()
        with pytest.raises(HTTPError, match="404"):
            urlopen(f"{where}/static/../site_web.py", timeout=30)
        with pytest.raises(HTTPError, match="421"):
            urlopen(Request(f"{where}/api/status", headers={"Host": "elsewhere.example"}), timeout=30)
        groups.pop("b").agent.close()
        until(lambda: coordinator.desk.record.counts["lost"] == 1)
    said = values_of(found["metrics"])
    assert said["inart_sites_joined",] == said["inart_sites_active",] == 2
    assert said["inart_sites_round",] == said["inart_sites_rounds_done_total",] == 1
    assert said["inart_sites_link_mbps", "a", "b"] > 0 and said["inart_sites_lost_total",] == 0
    assert said["inart_sites_busy_seconds_total",] >= said["inart_sites_round_seconds",] > 0
    status = json.loads(found["api/status"])
    assert status["acts"] and set(status["sites"]) == {"a", "b"} and status["under_way"] == []
    assert any(event["line"] == "b takes part from round 0 on" for event in status["events"])
    shown = set(re.findall(r"status\.(\w+)", found["static/sites.js"]))
    assert shown <= status.keys() and "#jobs" in found["static/page.css"]
    assert set(re.findall(r'src="static/(\w+)', found[""])) == {"sites"}


def test_sites_that_nobody_reaches_open_all_connections_and_their_sums_pass_by_others():
    """b and c listen nowhere, so no connection can be between them."""
    with coordinating(3, probe_seconds=0.1) as (coordinator, lines):
        groups = {"a": joined(coordinator, "a")}
        where = f"127.0.0.1:{coordinator.address[1]}"
        groups |= {name: init(where, name, advertise="none", timeout=60.0) for name in "bc"}
        with ThreadPoolExecutor(3) as pool:
            list(pool.map(lambda group: group.agree(state(1), 0), groups.values()))
        for number in range(3):
            assert averaged(groups, number, bits=(32, 8, 32)[number])["a"][1].sites == ("a", "b", "c")
        assert any("measured 4 of 6 pairs" in line for line in lines)
        assert groups["b"].agent.statistics()["bytes_sent"].keys() == {"a"}
        late = init(where, "d", advertise="none", timeout=60.0)
        assert late.agree(state(9), 0).round == 3, "it takes the state of a, whom it reaches"
        groups["d"] = late
        assert averaged(groups, 3)["d"][1].sites == ("a", "b", "c", "d")
        groups.pop("b").agent.close()
        assert averaged(groups, 4)["d"][1].sites == ("a", "c", "d")


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6 address of its own (::1)")
def test_sites_train_over_ipv6_with_nothing_given_but_the_coordinators_address():
    with make_coordinator("::1", 0, SiteSettings(2, probe_seconds=0.0), SiteNetwork(256)) as coordinator:
        where = f"[::1]:{coordinator.address[1]}"
        groups = {name: init(where, name, timeout=60.0) for name in "ab"}
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda name: groups[name].agree(state(1), 0), groups))
        assert averaged(groups, 0)["a"][1].sites == ("a", "b")
        assert {member.address[0] for member in coordinator.members.values()} == {"::1"}
        for group in groups.values():
            group.close()


def test_few_bits_are_few_bytes():
    with coordinating(3, probe_seconds=0) as (coordinator, _):
        groups = begun(coordinator, "abc")
        large, sent = 100_000, {}
        for number, bits in enumerate((32, 16, 8, 4)):
            before = sum(group.bytes_sent() for group in groups.values())
            with ThreadPoolExecutor(3) as pool:
                given = [pool.submit(group.average, np.ones(large, np.float32), round=number, bits=bits)
                         for group in groups.values()]  # fmt: skip
                assert all(each.result(60).sites == ("a", "b", "c") for each in given)
            sent[bits] = sum(group.bytes_sent() for group in groups.values()) - before
    # The data goes up and down a tree of three sites, with headers.
    assert sent[32] == pytest.approx(2 * 2 * 4 * large, rel=0.1)
    for bits in BITS:
        assert sent[bits] / sent[32] == pytest.approx(bits_a_value(bits, 3) / 32, rel=0.05)


def test_measured_rates_make_the_plan():
    with coordinating(3, probe_seconds=0.1) as (coordinator, lines):
        groups = begun(coordinator, "abc")
        averaged(groups, 0)
        assert any("measured 6 of 6 pairs" in line for line in lines)
        assert all(mbps > 0 for mbps in coordinator.desk.network.pairs.values())


# --- the policy, event by event ---


def decided(*, sites: int = 3, patience: float | None = None) -> SiteRounds:
    network = SiteNetwork(64)
    policy = SiteRounds(network, sites=sites, patience=patience, sending=Sending(chunk_values=64))
    for name in "abc"[:sites]:
        assert policy.admit(name) is None and policy.activate(name) is None
    policy.begin_at(0)
    return policy


def ready(node: str, round_: int, op: str = "sum") -> Ready:
    return Ready(node, 128, 1, round_, op)


def started(orders) -> Task:
    (task,) = [order.task for order in orders if isinstance(order, Start)]
    return task


def test_no_site_contributes_twice_when_only_one_has_the_result():
    policy = decided()
    orders = [order for node in "abc" for order in policy.handle(ready(node, 0), 0.0)]
    task = started(orders)
    policy.handle(Finished("a", task.number), 0.1)
    orders = policy.handle(Lost("c"), 0.2)
    assert [type(order) for order in orders] == [Abort]
    (refused,) = policy.handle(ready("b", 0), 0.3)  # b does not have the result that a has.
    assert isinstance(refused, Reject) and refused.behind == 1 and policy.active == {"a"}


def test_a_site_that_had_the_result_first_is_ahead():
    policy = decided()
    task = started([order for node in "abc" for order in policy.handle(ready(node, 0), 0.0)])
    policy.handle(Lost("c"), 0.1)
    policy.handle(Finished("a", task.number), 0.1)  # The task was given up.
    assert not policy.handle(ready("b", 0), 0.2)
    orders = policy.handle(ready("a", 1), 0.3)
    assert [(order.nodes, order.behind) for order in orders if isinstance(order, Reject)] == [(("b",), 1)]


def test_integer_sums_need_exactly_the_sites_that_agreed_on_the_scales():
    policy = decided()
    task = started([order for node in "abc" for order in policy.handle(ready(node, 0, "maximum"), 0.0)])
    for node in "abc":
        policy.handle(Finished(node, task.number), 0.1)
    policy.handle(ready("a", 0, "words"), 0.2)
    policy.handle(ready("b", 0, "words"), 0.2)
    (again,) = policy.handle(Lost("c"), 0.3)
    assert isinstance(again, Reject) and again.again and again.nodes == ("a", "b")
    policy.handle(ready("a", 0, "maximum"), 0.4)
    assert started(policy.handle(ready("b", 0, "maximum"), 0.4)).participants == ("a", "b")


def test_patience_ends_with_the_time_that_passes():
    policy = decided(patience=2.0)
    for node in "ab":
        assert not policy.handle(ready(node, 0), 10.0)
    assert not policy.handle(Tick(), 11.9)
    assert started(policy.handle(Tick(), 12.0)).participants == ("a", "b")
    assert policy.active == {"a", "b"}


# --- the network ---


def test_pairs_whose_packets_pass_a_third_site_are_no_links_of_their_own():
    trips = {("a", "b"): 0.01, ("b", "c"): 0.02, ("a", "c"): 0.0302}
    trips |= {(v, u): seconds for (u, v), seconds in trips.items()}
    assert direct_pairs(trips) == [("a", "b"), ("b", "a"), ("b", "c"), ("c", "b")]
    # Within one building the round trips are too short to tell anything.
    assert len(direct_pairs(dict.fromkeys(trips, 0.0002))) == 6
    everybody = [(a, b) for a in range(10) for b in range(10) if a != b]
    assert len(slots((str(a), str(b)) for a, b in everybody)) == 9
    for slot in slots(trips):
        assert len({a for a, _ in slot}) == len({b for _, b in slot}) == len(slot)


def test_an_uplink_that_pairs_share_is_divided():
    network = SiteNetwork(64)
    pairs = [(a, b) for a in "abc" for b in "abc" if a != b]
    network.surveyed(dict.fromkeys(pairs, 100.0), {pair: 50.0 if pair[0] == "a" else 100.0 for pair in pairs}, {})
    assert network.out == {"a": 100.0} and network.into == {}
    links = network.links("abc")
    assert links["a", "b"] + links["a", "c"] == pytest.approx(100.0) and links["b", "c"] == 100.0
    plan, _ = network.plan("abc")
    assert plan.rate_mbps > 0


def test_a_broken_pair_is_avoided_until_it_is_measured_or_a_site_is_another_process_or_a_coordinator_begins_anew():
    network = SiteNetwork(64)
    pairs = dict.fromkeys([(a, b) for a in "abc" for b in "abc" if a != b], 100.0)
    network.surveyed(pairs, {}, {})
    for whole in (
        lambda: network.restarted("c"), network.none_broken,
        lambda: network.surveyed({("a", "c"): 100.0, ("c", "a"): 100.0}, {}, {}),
    ):  # fmt: skip
        network.broken("a", "c")
        network.restarted("b")
        version = network.version
        assert {pair for pair, mbps in network.links("abc").items() if mbps < 1.0} == {("a", "c"), ("c", "a")}
        assert network.to_json()["pairs"] == [[*pair, 100.0] for pair in pairs], "others find out by themselves"
        whole()
        assert network.links("abc") == pairs and network.version > version


def test_links_of_a_process_that_has_ended_do_not_stay_broken():
    """Its neighbours may report the ends of its connections before the coordinator has noticed that it is gone."""
    with coordinating(3) as (coordinator, _):
        groups = begun(coordinator, "abc")
        averaged(groups, 0)
        network = coordinator.desk.network
        before = network.links("abc")
        address = list(coordinator.members["c"].address)
        for node in "ab":
            said = {"type": "lost", "node": "c", "address": address, "reason": "the connection to c ended"}
            coordinator.loop.call_soon_threadsafe(coordinator.said, node, said)
        until(lambda: network.links("abc")["a", "c"] < 0.01 > network.links("abc")["c", "b"])
        groups.pop("c").agent.close()
        groups["c"] = joined(coordinator, "c")
        assert groups["c"].agree(state(9), 0).round == 1
        assert network.links("abc") == before
        assert averaged(groups, 1)["c"][1].sites == ("a", "b", "c")
        for group in groups.values():
            group.close()


def test_long_fast_links_have_room_for_what_is_under_way():
    network = SiteNetwork(16_384)
    pairs = [(a, b) for a in "ab" for b in "ab" if a != b]
    network.surveyed(dict.fromkeys(pairs, 1000.0), {}, dict.fromkeys(pairs, 0.1))
    plan, _ = network.plan("ab")
    fastest = plan.rate_mbps * max(tree.share for tree in plan.trees)
    for values in (10_000, 100_000_000):
        chunk, window = network.chunks("ab", values)
        assert window * chunk * 32e-6 > 0.3 * fastest
    near = SiteNetwork(16_384)
    near.surveyed(dict.fromkeys(pairs, 1000.0), {}, {})
    assert near.chunks("ab", 10_000) == (16_384, 32)


@pytest.mark.parametrize(
    ("mbps", "values", "chunk"),
    [(10.0, 1 << 30, 16_384), (1000.0, 1 << 30, 131_072), (100_000.0, 1 << 30, 262_144), (100_000.0, 1 << 24, 65_536)],
)
def test_chunks_are_larger_on_fast_links_and_in_long_rounds(mbps, values, chunk):
    """Between two sites a tree has the whole rate of a link."""
    network = SiteNetwork(16_384)
    network.surveyed({("a", "b"): mbps, ("b", "a"): mbps}, {}, {})
    found, window = network.chunks("ab", values)
    assert found == chunk and window >= 8


def test_slow_rounds_have_the_network_measured_again():
    with coordinating(2, probe_seconds=0.05) as (coordinator, lines):
        groups = begun(coordinator, "ab")
        averaged(groups, 0)
        desk = coordinator.desk
        task = started_alone(coordinator)
        for pair in desk.network.pairs:
            desk.network.pairs[pair] = 1e6 * desk.network.pairs[pair]  # wrong: the network has become slower since
        desk.network.version += 1

        def slow() -> None:
            desk.measured_at = -1e9
            for _ in range(3):
                desk.task_done(task, 1.5 * desk.network.expected_seconds("ab", task.values) + 1.0)

        coordinator.loop.call_soon_threadsafe(slow)
        until(lambda: sum("measured 2 of 2" in line for line in lines) == 2)
        assert any("the network is measured again" in line for line in lines)
        averaged(groups, 1)


def test_a_network_that_has_become_faster_is_measured_again():
    """Rounds at the plan's rates do not show it; a look within the budget does."""
    with coordinating(2, probe_seconds=0.05) as (coordinator, lines):
        groups = begun(coordinator, "ab")
        averaged(groups, 0)
        desk = coordinator.desk
        until(lambda: desk.survey is None and len(desk.growth.rates) == 2)
        task = started_alone(coordinator)
        before = dict(desk.network.pairs)
        slow = dict.fromkeys(before, 0.001)

        def later() -> None:
            desk.measured_at = -1e9
            desk.growth.surveyed(slow)  # all that was measured before is far less than what loopback carries
            desk.task_done(task, 0.0)

        coordinator.loop.call_soon_threadsafe(later)
        until(lambda: sum("measured 2 of 2" in line for line in lines) == 2)
        assert any(" instead of 0.001: the network is measured again" in line for line in lines)
        assert min(desk.growth.rates.values()) > 0.001
        averaged(groups, 1)


def test_a_link_that_loses_packets_has_the_network_measured_again():
    with coordinating(2, probe_seconds=0.05) as (coordinator, lines):
        groups = begun(coordinator, "ab")
        averaged(groups, 0)
        desk, losses = coordinator.desk, {"b": 0.004}
        groups["a"].agent.site.losses = lambda: losses
        groups["b"].agent.site.losses = dict

        def told(number: int) -> None:
            coordinator.loop.call_soon_threadsafe(setattr, desk, "measured_at", -1e9)
            groups["a"].offer(state(number), number)
            until(lambda: desk.states["a"][0] == number)

        told(2)
        assert desk.survey is None and desk.network.losses["a", "b"] == 0.004
        losses["b"] = 0.03
        told(3)
        until(lambda: sum("measured 2 of 2" in line for line in lines) == 2)
        assert any("3.0% of the packets from a to b are lost: the network is measured again" in line for line in lines)
        told(4)
        assert desk.survey is None, "that was known when rates were measured"
        _, metrics = metrics_of(coordinator.status())
        assert values_of(metrics.decode())["inart_sites_link_loss", "a", "b"] == pytest.approx(0.03)


def test_a_neighbours_losses_are_those_since_they_were_asked_for_last():
    counts = (0, 100)
    losses = Losses({"b": SimpleNamespace(sent_again=lambda: counts)})
    assert losses.since() == {}, "too few"
    counts = (10, 1000)
    assert losses.since() == {"b": 0.01} and losses.since() == {}
    counts = (110, 2000)
    assert losses.since() == {"b": 0.1}
    counts = (5, 500)  # Another connection.
    assert losses.since() == {"b": 0.01}


def started_alone(coordinator) -> Task:
    """A large round of both sites, as the coordinator hears of it in the end."""
    plan, topology = coordinator.desk.network.plan("ab")
    return task_of(plan, topology, int(1e10 * plan.rate_mbps), op="sum", way=Sending(chunk_values=256))


# --- few bits ---


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("sites", [2, 3, 7, 12, 64])
def test_no_sum_leaves_its_field_and_the_error_is_bounded(bits, sites):
    rng = np.random.default_rng(sites)
    given = rng.standard_normal((sites, 3001)).astype(np.float32)
    given[:, 7] = 5.0  # All are at the scale, with the same sign.
    given[:, 8] = -5.0
    given[:, 1024:1536] = 0.0
    weights = rng.uniform(0.0, 3.0, sites)
    fractions = (weights / weights.sum()).tolist()
    scales = np.max([scales_of(each) for each in given], axis=0)
    total, lefts = None, []
    for each, fraction in zip(given, fractions, strict=True):
        words, left = pack(each, scales, fraction, bits, sites)
        lefts.append(left)
        total = words.view(np.uint64).copy() if total is None else total + words.view(np.uint64)
    mean = np.empty(3001, np.float32)
    unpack(total.view(np.float32), scales, bits, sites, mean)
    quantum = np.repeat(scales, 512)[:3001] / levels(bits, sites)
    exact = np.average(given.astype(np.float64), axis=0, weights=weights)
    assert np.all(np.abs(mean - exact) <= sites / 2 * quantum * 1.001 + 1e-6)
    # The omitted part is exactly what is missing: added in the next round, nothing is lost.
    kept = np.average(given.astype(np.float64) - np.array(lefts), axis=0, weights=weights)
    np.testing.assert_allclose(mean, kept, atol=1e-5)
    assert not mean[1024:1536].any()
    assert bits + np.log2(sites) <= width(bits, sites) < bits_a_value(bits, sites) <= 32 + 32 / 512


def test_nonfinite_values_are_noticed_at_all_sites():
    values = np.ones(1024, np.float32)
    values[3], values[600] = np.nan, np.inf
    scales = scales_of(values)
    words, left = pack(values, scales, 1.0, 8, 2)
    mean = np.empty(1024, np.float32)
    unpack(words, scales, 8, 2, mean)
    assert np.isnan(mean).all() and np.isfinite(left).all()


def test_a_site_that_submitted_before_the_others_began_gets_its_values_back():
    """A coordinator was restarted: b had submitted, and is to take the state of a first."""
    policy = SiteRounds(SiteNetwork(256), sites=2)
    assert policy.admit("a") is None and policy.admit("b") is None
    assert not policy.handle(Ready("b", 100, 1, 0, "sum", 1.0), 0.0)
    policy.begin_at(3, "ab")
    policy.activate("a")
    (given_back,) = policy.handle(Tick(), 1.0)
    assert isinstance(given_back, Reject) and given_back.nodes == ("b",) and given_back.behind == 3
    assert policy.missing() == []
