"""Settings that all tests of softswitch share."""

import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings

# Properties are tried on the same examples in every run: what a run says depends on the code alone.
settings.register_profile("softswitch", derandomize=True)
settings.load_profile("softswitch")


@pytest.fixture(autouse=True)
def signals() -> Iterator[None]:
    """Put handlers of signals back: a command that runs in the test's process leaves its own."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "namespaces: makes network namespaces (needs root)")
