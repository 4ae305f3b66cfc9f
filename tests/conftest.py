"""What all tests share."""

import signal


def pytest_configure() -> None:
    """A shell starts background commands with SIGINT ignored, and processes hand that on: tests that press Ctrl-C in a
    process of theirs would wait for nothing."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
