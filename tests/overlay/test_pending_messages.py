"""Messages that are held for tasks that have not been announced yet, and the limits of that."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from overlay.core.message import Header, Kind
from overlay.net import pending_messages
from overlay.net.pending_messages import PendingMessages


def message(epoch: int, task: int, values: int = 100) -> tuple[Header, np.ndarray]:
    return Header(Kind.UP, epoch, task, (0, 1), 1, 0, 0, values), np.zeros(values, np.float32)


def test_another_coordinator_makes_room_and_its_own_tasks_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending_messages, "HELD_BYTES", 1000)
    counters: Counter[str] = Counter()
    held = PendingMessages(counters)
    held.hold(*message(1, 7))
    held.hold(*message(2, 3))
    held.hold(*message(1, 8))  # The message has 1,200 bytes.
    assert counters["held too much"] == 1
    held.forget_before(2)
    assert held.take(1, 7) == []
    held.hold(*message(2, 4))
    assert counters["held too much"] == 1
    assert [len(held.take(2, task)) for task in (3, 4)] == [1, 1]
