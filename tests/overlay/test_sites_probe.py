"""Messages by which sites measure a link: what is left of them when the time is over delays everything behind them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest

from overlay.core.message import HEADER_BYTES, Header
from overlay.net.site_services import PROBE_VALUES, SiteServices

KERNEL_BYTES = 1 << 18
SECONDS = 0.4


class Link:
    """A neighbour behind a link of so many bytes a second, and a kernel that takes KERNEL_BYTES ahead."""

    def __init__(self, loop: asyncio.AbstractEventLoop, rate: float) -> None:
        self._loop, self._rate = loop, rate
        self.peers = {"b": self}
        self.members, self.epoch, self.hidden = {"b": ("", 0)}, 1, set[str]()
        self.sent, self.empty_at, self.sizes = 0, loop.time(), list[int]()
        self.ended = asyncio.Event()

    def path(self, *names: str) -> tuple[int, ...]:
        return tuple(range(len(names)))

    def acknowledged(self) -> int:
        return int(self.sent - self._rate * max(0.0, self.empty_at - self._loop.time()))

    def adapt_to(self, name: str) -> None:
        pass

    def send(self, priority: int, header: Header, values: np.ndarray, sent: Callable[[], None]) -> None:
        size = HEADER_BYTES + values.nbytes
        self.sizes.append(values.size)
        self.sent += size
        self.empty_at = max(self.empty_at, self._loop.time()) + size / self._rate
        if header.chunk:
            self.ended.set()
        self._loop.call_later(max(0.0, self.empty_at - KERNEL_BYTES / self._rate - self._loop.time()), sent)


async def probed(rate: float) -> tuple[list[int], float]:
    """(values of the messages, seconds after the measurement until the last one has left)."""
    loop = asyncio.get_running_loop()
    link = Link(loop, rate)
    services = SiteServices("a", loop, SimpleNamespace(), link)  # type: ignore[arg-type]
    began = loop.time()
    services.said({"what": "probe", "to": "b", "number": 1, "seconds": SECONDS})
    await asyncio.wait_for(link.ended.wait(), 30)
    return link.sizes, link.empty_at - began - SECONDS


@pytest.mark.parametrize("rate", [1e6, 1e8])
def test_a_measurement_leaves_little_behind(rate: float) -> None:
    sizes, left = asyncio.run(probed(rate))
    assert left < KERNEL_BYTES / rate + 0.2, "what the kernel had taken, and a message"
    if rate == 1e8:
        assert max(sizes) == PROBE_VALUES[1], "a fast link carries large messages"
    else:
        assert max(sizes) < 8 * PROBE_VALUES[0]
