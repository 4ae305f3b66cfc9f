"""The status of a coordinator of sites (`inart site`), for which a controller asks whose page shows jobs and sites."""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from collections.abc import Callable
from typing import Any

SECONDS = 3.0
"""Seconds after which a coordinator that has not answered is shown as one that does not answer."""
FRESH_SECONDS = 1.0
MOST_BYTES = 16 << 20


class Sites:
    """Status of the coordinator at an address, "HOST:PORT" or a URL. It is asked once a second at most, however many
    look.

    Raises ValueError where the address is none.
    """

    def __init__(self, address: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.url = address.rstrip("/") if "://" in address else f"http://{address}"
        host, _, port = self.url.partition("://")[2].rpartition(":")
        if not self.url.startswith(("http://", "https://")) or not host or not port.isdigit():
            raise ValueError(f"--sites takes HOST:PORT, the address at which sites join, got {address!r}")
        self._clock = clock
        self._lock = threading.Lock()
        self._asked = float("-inf")
        self._last: dict[str, Any] = {}

    def status(self) -> dict[str, Any]:
        """Return the coordinator's status (overlay/net/site_status.py), or {"problem": why it does not answer}."""
        with self._lock:
            if self._clock() - self._asked >= FRESH_SECONDS:
                self._last = self._ask()
                self._asked = self._clock()
            return self._last

    def _ask(self) -> dict[str, Any]:
        try:
            with urllib.request.urlopen(f"{self.url}/api/status", timeout=SECONDS) as answer:
                found = json.loads(answer.read(MOST_BYTES))
        except (OSError, ValueError) as error:
            return {"problem": f"the coordinator at {self.url} does not answer ({error})"}
        return found if isinstance(found, dict) else {"problem": f"{self.url} is no coordinator of sites"}
