"""Fixtures of the data plane's tests: a fabric per test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from softswitch import Fabric


@pytest.fixture
def fabric() -> Iterator[Fabric]:
    with Fabric(seed=7) as made:
        yield made
