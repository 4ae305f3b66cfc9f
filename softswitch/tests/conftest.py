"""Settings that all tests of softswitch share."""

import pytest
from hypothesis import settings

# Properties are tried on the same examples in every run: what a run says depends on the code alone.
settings.register_profile("softswitch", derandomize=True)
settings.load_profile("softswitch")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "namespaces: makes network namespaces (needs root)")
