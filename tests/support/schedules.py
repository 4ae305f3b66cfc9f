"""Digests of drawn schedules, by which a test notices that a seed means another schedule than before."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any

from evaluation.chaos.events import Event


def digest(events: Iterable[Event], *more: Any) -> str:
    """Return the digest of events, and of anything else that was drawn with them and that JSON can express."""
    rows = [[round(one.at, 3), round(one.seconds, 3), one.kind, one.target, one.seed] for one in events]
    return hashlib.sha256(json.dumps([rows, *more]).encode()).hexdigest()[:16]
