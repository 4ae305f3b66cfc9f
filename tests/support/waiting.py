"""Waiting for what another thread or process brings about."""

from softswitch.tests.support.waiting import wait_until

__all__ = ["wait_until"]
