"""Measurements of a link: the rate is right however seldom a process runs, and no queue is left behind."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from itertools import count, cycle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overlay.core.link_rate import WARM_UP, LinkRate
from overlay.core.message import HEADER_BYTES, Header
from overlay.net.site_services import PROBE_VALUES, SiteServices

ROOT = Path(__file__).parents[2]
KERNEL_BYTES = 1 << 18
SECONDS = 0.4


class Link:
    """A neighbour behind a link of so many bytes a second, and a kernel that takes KERNEL_BYTES ahead."""

    def __init__(self, loop: asyncio.AbstractEventLoop, rate: float) -> None:
        self._loop, self._rate = loop, rate
        self.peers = {"b": self}
        self.told, self.ended = list[dict[str, object]](), asyncio.Event()
        self.members, self.epoch = {"b": ("", 0)}, 1
        self.sent, self.empty_at, self.sizes = 0, loop.time(), list[int]()

    @property
    def bytes_sent(self) -> int:
        return self.sent

    def tell(self, **message: object) -> None:
        self.told.append(message)
        self.ended.set()

    def path(self, *names: str) -> tuple[int, ...]:
        return tuple(range(len(names)))

    def acknowledged(self) -> int:
        return int(self.sent - self._rate * max(0.0, self.empty_at - self._loop.time()))

    def quiet_seconds(self) -> float:
        return max(0.0, self._loop.time() - self.empty_at)

    def adapt_to(self, name: str) -> None:
        pass

    def send(self, priority: int, header: Header, values: np.ndarray, sent: Callable[[], None]) -> None:
        size = HEADER_BYTES + values.nbytes
        self.sizes.append(values.size)
        self.sent += size
        self.empty_at = max(self.empty_at, self._loop.time()) + size / self._rate
        self._loop.call_later(max(0.0, self.empty_at - KERNEL_BYTES / self._rate - self._loop.time()), sent)


async def probed(rate: float) -> tuple[Link, float]:
    """Return the link after a measurement, and its queue when the rate was reported, in seconds."""
    loop = asyncio.get_running_loop()
    link = Link(loop, rate)
    services = SiteServices("a", loop, link, link)  # type: ignore[arg-type]
    services.said({"what": "probe", "to": "b", "number": 1, "seconds": SECONDS})
    await asyncio.wait_for(link.ended.wait(), 30)
    return link, link.empty_at - loop.time()


@pytest.mark.parametrize("rate", [1e6, 1e8])
def test_a_measurement_is_not_above_the_rate_and_leaves_nothing_behind(rate: float) -> None:
    link, queue = asyncio.run(probed(rate))
    assert queue <= 0, "the next measurement finds no queue"
    (told,) = link.told
    assert (told["receiver"], told["number"]) == ("b", 1)
    assert 0 < told["mbps"] <= 1.001 * rate * 8e-6, "a busy machine may not fill the link"
    sizes = link.sizes
    if rate == 1e8:
        assert max(sizes) == PROBE_VALUES[1], "a fast link carries large messages"
    else:
        assert max(sizes) < 8 * PROBE_VALUES[0]


@settings(deadline=None)
@given(
    rate=st.floats(1e4, 1e9),
    pauses=st.lists(st.one_of(st.floats(0.005, 0.02), st.floats(0.02, 3.0)), min_size=1, max_size=40),
    stops=st.lists(st.floats(0.0, 0.5), min_size=1, max_size=8),
)
def test_no_rate_is_above_the_links_however_seldom_the_process_runs(rate, pauses, stops):
    """The process runs after each of the pauses, and may stop between two readings of clock and counter. The link is
    busy all the time, so the rate is also not below the link's, but for the stops.
    """
    now, stop, reads = [0.0], cycle(stops), count()

    def clock() -> float:
        if next(reads) % 2:
            now[0] += next(stop)
        return now[0]

    measured = LinkRate(clock, lambda: int(rate * now[0]), lambda: 0.0, 1.0)
    for pause in cycle(pauses):
        now[0] += pause
        if measured.read():
            break
    assert measured.mbps <= rate * 8e-6 + 1e-4
    longest = 2 * max(stops)
    assert measured.mbps >= 0.95 * rate * 8e-6 * (1 - WARM_UP) / (1 - WARM_UP + longest)


def test_the_time_after_the_last_byte_has_arrived_does_not_count():
    """The sender fills the link, and does not run for a long time after that: nothing was there to be sent."""
    rate, now, empty = 1e6, 0.0, 0.35

    def arrived() -> int:
        return int(rate * min(now, empty))

    measured = LinkRate(lambda: now, arrived, lambda: max(0.0, now - empty), 0.3)
    now = 0.1
    assert not measured.read()
    now = 5.0
    assert measured.read() and measured.mbps == pytest.approx(rate * 8e-6)


SHAPED = """
import json, sys, time
import numpy as np
from concurrent.futures import ThreadPoolExecutor
from overlay.core.site_network import SiteNetwork
from overlay.sites import init
from overlay.sites.command import SiteSettings, make_coordinator

def starve(site):  # from the 30th message on, the site stands still until the measurement is over
    received, left = site.received, iter(range(30))

    def then_stop(*message):
        if next(left, None) == 29:
            time.sleep(1.5)
        received(*message)

    site.received = then_stop

with make_coordinator("127.0.0.1", 0, SiteSettings(2, probe_seconds=0.6), SiteNetwork(256)) as coordinator:
    groups = {name: init(f"127.0.0.1:{coordinator.address[1]}", name, listen="127.0.0.1:0") for name in "ab"}
    for group in groups.values():
        starve(group.agent.site)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda group: group.agree(np.zeros(4, np.uint8), 0), groups.values()))
    while coordinator.desk.survey is not None or not coordinator.desk.surveyed:
        time.sleep(0.02)
    print(json.dumps([[*pair, mbps] for pair, mbps in coordinator.desk.network.pairs.items()]), flush=True)
    sys.stdout.flush()
import os
os._exit(0)
"""


@pytest.mark.namespaces
@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("tc"), reason="shaping a link takes root and tc")
def test_a_shaped_link_is_never_measured_above_its_rate_by_a_site_that_seldom_runs():
    """Two sites of one namespace, both directions over its loopback of 50 Mbit/s in all. In the middle of a measurement
    they stand still, and then read all that has arrived at once.
    """
    shape = "ip link set lo mtu 1500 up && tc qdisc add dev lo root tbf rate 50mbit burst 32kb limit 300kb"
    words = ["unshare", "--net", "sh", "-c", f'{shape} && exec "$0" -c "$1"', sys.executable, SHAPED]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(words, check=False, env=environment, capture_output=True, text=True, timeout=200)
    assert ran.returncode == 0, ran.stderr
    found = {(a, b): mbps for a, b, mbps in json.loads(ran.stdout)}
    assert found.keys() == {("a", "b"), ("b", "a")}, ran.stderr
    assert all(0 < mbps <= 1.25 * 50 for mbps in found.values()), found
