"""Base of the targets that talk to their switch over a session: connects with retries, and explains refused writes."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Generic, Protocol, TypeVar

import grpc

from controlplane.targets.base import Change, InstallError, NotPrimary, SwitchAddress, TargetError, UpdateFailure

FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 1.0


class Closable(Protocol):
    """A session with a switch."""

    @property
    def alive(self) -> bool: ...

    def close(self) -> None: ...


SessionT = TypeVar("SessionT", bound=Closable)
StepT = TypeVar("StepT")


class WriteRejected(Exception):
    """A switch refused a write, wholly or in part. Each of the `failures` is (index of the update, canonical code,
    message); where there are none, nothing is known about the single updates."""

    def __init__(self, failures: list[tuple[int, str, str]], reason: str) -> None:
        self.failures = failures
        super().__init__(reason)


class SessionTarget(ABC, Generic[SessionT]):
    """One switch and the session with it, if there is one.

    Args:
        on_lost: called from another thread, with the reason, when the session ends or another controller takes over.
    """

    def __init__(self, switch: SwitchAddress, *, on_lost: Callable[[str], None]) -> None:
        self.switch, self.name, self.address = switch, switch.name, switch.address
        self.on_lost = on_lost
        self.may_connect: Callable[[], bool] = lambda: True
        """Called before every session; it returns False where another controller of this network leads now."""
        self._session: SessionT | None = None

    @abstractmethod
    def _open(self, left: float) -> SessionT:
        """Open a session within `left` seconds. Raise TargetError, or NotPrimary where waiting does not help."""

    @property
    def session(self) -> SessionT:
        if self._session is None:
            raise TargetError(f"switch {self.name} ({self.address}) is not connected")
        return self._session

    @property
    def alive(self) -> bool:
        """Whether the session is open and this controller may write to the switch."""
        return self._session is not None and self._session.alive

    def connect(self, timeout: float) -> None:
        """Open a session, retrying until `timeout` seconds have passed: switches may still be starting."""

        def attempt(left: float) -> SessionT:
            self.close()
            if not self.may_connect():
                raise NotPrimary(f"switch {self.name}: this controller does not lead any more")
            return self._open(left)

        self._session = connect_within(timeout, attempt)

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None

    def _lost(self, reason: str) -> None:
        self.on_lost(reason)  # `on_lost` may have been replaced since the session began, so it is looked up now.

    @contextmanager
    def _explained(self, batch: Sequence[StepT], of: int, words: Callable[[StepT], Change | str]) -> Iterator[None]:
        """Turn a refused batch into an InstallError with each step that failed. `of` is the number of steps of all
        batches; `words` returns a step as it appears in the message."""
        try:
            yield
        except WriteRejected as rejected:
            if not rejected.failures:
                raise TargetError(f"{rejected}; the batch began with: {words(batch[0])}") from None
            failures = [
                UpdateFailure(words(batch[index]), code, message)
                for index, code, message in rejected.failures
                if index < len(batch)
            ]
            raise InstallError(self.name, failures, of) from None


def explain(error: grpc.RpcError, where: str, doing: str, hints: Mapping[grpc.StatusCode, str]) -> TargetError:
    """Return a gRPC error as a TargetError that names the switch and what was being done. `hints` say what to check,
    by code."""
    code, details = error.code(), (error.details() or "").strip()
    hint = {grpc.StatusCode.DEADLINE_EXCEEDED: "it did not answer in time", **hints}.get(code, "")
    return TargetError(f"{where}: {doing} failed: {code.name}: {details}" + (f" ({hint})" if hint else ""))


def connect_within(timeout: float, attempt: Callable[[float], SessionT]) -> SessionT:
    """Call `attempt(seconds left)` until it succeeds or `timeout` seconds have passed, and return its result.

    Raise the last TargetError; raise NotPrimary at once, since waiting does not help.
    """
    deadline = time.monotonic() + timeout
    pause = FIRST_PAUSE_S
    while True:
        try:
            return attempt(deadline - time.monotonic())
        except NotPrimary:
            raise
        except TargetError as error:
            if time.monotonic() + pause > deadline:
                raise TargetError(f"{error}; gave up after {timeout:g} s") from None
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE_S)
