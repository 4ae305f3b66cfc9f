"""The process of an emulated site while everything around it fails: rounds whose every mean is checked.

A site's values in a round are plus or minus one, drawn from its name and the round. So a mean tells which sites' values
are in it, and how often: it is solved for each site's part, which is one over the number of sites, or nothing.
"""

from __future__ import annotations

import hashlib
import os
import signal
import threading
import time
import zlib
from contextlib import closing
from typing import Any

import numpy as np

from overlay.core.errors import Behind, Late, OverlayError
from overlay.core.site_quorum import alone_among
from overlay.sites.group import SiteGroup, init
from overlay.sites.packing import Floats
from topologies.zygote import Channel

LOOKED_AT = 2000
"""Number of values of a mean from which each site's part in it is computed."""

NEAR = 0.1
"""Largest relative error of a site's part: with 8 bits values are rounded."""

AGAIN_SECONDS = 0.5


def given(name: str, round_: int, values: int) -> Floats:
    """Return a site's values in a round."""
    rng = np.random.default_rng([zlib.crc32(name.encode()), round_])
    return np.where(rng.integers(0, 2, values, np.int8) > 0, np.float32(1), np.float32(-1))


def wrong_in(mean: Floats, sites: tuple[str, ...], names: list[str], round_: int) -> str:
    """Return what is wrong with a mean that is said to be of these sites, in words. `names` are those of all sites of
    the run.
    """
    parts = np.stack([given(name, round_, len(mean))[:LOOKED_AT] for name in names], axis=1)
    found = np.linalg.lstsq(parts, mean[:LOOKED_AT], rcond=None)[0]
    wanted = np.array([1 / len(sites) if name in sites else 0.0 for name in names])
    off = np.abs(found - wanted) > NEAR / len(sites)
    return ", ".join(f"{names[k]} is in it {found[k] * len(sites):.3f} times" for k in np.flatnonzero(off))


class _Site:
    def __init__(self, channel: Channel, about: dict[str, Any]) -> None:
        self._channel, self._about, self.leaving = channel, about, threading.Event()
        self._lock = threading.Lock()

    def say(self, **message: object) -> None:
        with self._lock:
            self._channel.send(message)

    def live(self) -> None:
        about = self._about
        group = init(
            about["coordinator"], about["name"], listen=f"{about['address']}:0", timeout=about["timeout"],
            log=lambda line: print(f"{time.monotonic():.2f} {line}", flush=True),
        )  # fmt: skip
        assert group is not None
        with closing(group):
            data, round_ = self._agree(group, np.zeros(4 * about["values"], np.uint8), 0)
            while not self.leaving.is_set():
                done = self._round(group, data, round_)
                if done is None:
                    data, round_ = self._agree(group, data, round_)
                    continue
                data, round_ = done
                self.leaving.wait(about["pause"])

    def _agree(self, group: SiteGroup, data: np.ndarray, round_: int) -> tuple[np.ndarray, int]:
        began = time.monotonic()
        self.say(kind="asks")
        while True:
            try:
                state = group.agree(data, round_)
                break
            except Late as error:
                self.say(kind="late", seconds=time.monotonic() - began, words=str(error))
                began = time.monotonic()
        self.say(kind="state", round=state.round, digest=hashlib.sha256(state.data.data).hexdigest())
        return state.data, state.round

    def _round(self, group: SiteGroup, data: np.ndarray, round_: int) -> tuple[np.ndarray, int] | None:
        """Do a round, and return the next state and round; None where the others have done it already, or it has to be
        tried again.
        """
        about, began = self._about, time.monotonic()
        values = given(group.site, round_, about["values"])
        self.say(kind="waits", round=round_)
        try:
            found = group.average(values, round=round_, bits=32 if round_ % 2 else 8)
        except Behind:
            self.say(kind="behind", seconds=time.monotonic() - began)
            return None
        except Late as error:
            self.say(kind="late", seconds=time.monotonic() - began, words=str(error))
            return data, round_
        data = (data.view(np.float32) + values).view(np.uint8)
        group.offer(data, round_ + 1)
        alone = not group.agent.membership.heard > began and bool(alone_among(group.agent.site.history))
        self.say(
            kind="round", round=round_, sites=found.sites, seconds=time.monotonic() - began, alone=alone,
            digest=hashlib.sha256(data.data).hexdigest(),
            wrong=wrong_in(values, found.sites, about["names"], round_),
        )  # fmt: skip
        return data, round_ + 1


def site(channel: Channel, **about: Any) -> str:
    """Run one site, from its start until it is told to leave (SIGTERM) or killed."""
    one = _Site(channel, about)
    signal.signal(signal.SIGTERM, lambda *_: one.leaving.set())
    end = time.monotonic() + about["timeout"]
    while True:
        try:
            one.live()
            return "left"
        except OverlayError as error:  # no coordinator answers, or the sites have ended
            print(f"{type(error).__name__}: {error}", flush=True)
            if one.leaving.is_set() or os.getppid() == 1 or time.monotonic() > end + 600:
                return "left"
            time.sleep(AGAIN_SECONDS)
