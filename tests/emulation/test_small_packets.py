"""Sites between which a link carries only small packets, and drops larger ones without a word, train all the same."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from evaluation.hosts.network import StarNetwork, inside, run
from overlay.core.site_network import SiteNetwork
from overlay.sites import init
from overlay.sites.command import SiteSettings, make_coordinator
from tests.support.waiting import wait_until

ADDRESSES = {"a": "10.9.0.1", "b": "10.9.0.2"}
VALUES = 100_000


def test_a_link_that_drops_large_packets_in_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("overlay.net.outbound.UNANSWERED_SECONDS", 1.0)
    monkeypatch.setattr("overlay.net.survey.ANSWER_SECONDS", 2.0)
    log: list[str] = []
    network = SiteNetwork(1 << 14)
    star = StarNetwork("inart-mtu", list(ADDRESSES), list(ADDRESSES.values()))
    try:
        for host in star.hosts.values():  # segments leave one by one: a bridge passes on longer chains of any length
            run("ip", "-n", host, "link", "set", "dev", "data0", "gso_max_segs", "1")
        run("ip", "-n", star.middle, "link", "set", "dev", "p-b", "mtu", "1300")
        with star.bridged():
            with inside(star.hosts["a"]):
                coordinator = make_coordinator(
                    ADDRESSES["a"], 0, SiteSettings(2, probe_seconds=0.2), network, log=log.append
                )
            groups = {}
            try:
                at = f"{ADDRESSES['a']}:{coordinator.address[1]}"
                for name, address in ADDRESSES.items():
                    with inside(star.hosts[name]):
                        groups[name] = init(at, name, listen=f"{address}:0", timeout=60.0)
                values = {name: np.full(VALUES, ord(name), np.float32) for name in groups}
                with ThreadPoolExecutor(2) as pool:
                    states = [pool.submit(group.agree, np.full(VALUES, 7, np.uint8), 0) for group in groups.values()]
                    assert [state.result(60).round for state in states] == [0, 0]
                    means = [pool.submit(groups[name].average, values[name], round=0) for name in groups]
                    assert [mean.result(60).sites for mean in means] == [("a", "b")] * 2
                for each in values.values():
                    np.testing.assert_array_equal(each, (ord("a") + ord("b")) / 2)
                wait_until(lambda: network.pairs.keys() == {("a", "b"), ("b", "a")}, f"both are measured: {log}")
            finally:
                for group in groups.values():
                    group.close()
                coordinator.close()
    finally:
        star.close()
