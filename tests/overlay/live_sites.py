"""Sites that do rounds in threads, and wires that can be cut: for tests of sites and their coordinator."""

from __future__ import annotations

import socket
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress

import numpy as np

from overlay.core.errors import Behind, OverlayError
from overlay.sites import init
from tests.overlay.test_agents import until

VALUES = 3000


class Wire:
    """The connection between two ends: an address that leads to another one. While it is cut, nothing comes through,
    and neither end is told.
    """

    def __init__(self, target: tuple[str, int], server: socket.socket | None = None) -> None:
        """Lead from a socket that listens (None: a new one) to the target."""
        self._target, self._cut = target, False
        self._sockets: list[socket.socket] = []
        self._server = server or socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self._server.getsockname()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        self._cut = True

    def mend(self) -> None:
        """Close the connections: data sent meanwhile is lost, and both ends notice it."""
        if self._cut:
            self._cut = False
            self._end()

    def close(self) -> None:
        self._server.close()
        self._end()

    def _end(self) -> None:
        for each in self._sockets:
            _end(each)
        self._sockets.clear()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._server.accept()
            except OSError:
                return
            self._sockets.append(near)
            if not self._cut:
                try:
                    far = socket.create_connection(self._target)
                except OSError:
                    near.close()
                    continue
                self._sockets.append(far)
                for here, there in ((near, far), (far, near)):
                    threading.Thread(target=self._carry, args=(here, there), daemon=True).start()

    def _carry(self, here: socket.socket, there: socket.socket) -> None:
        try:
            while data := here.recv(1 << 16):
                if not self._cut:
                    there.sendall(data)
            if not self._cut:
                there.shutdown(socket.SHUT_WR)
        except OSError:
            _end(there)


def _end(one: socket.socket) -> None:
    """Close the socket; its readers notice it."""
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()


class Training:
    """A site that does one round after the other, in a thread, as an optimiser would. seen: (round, sites) of those
    that it did."""

    def __init__(self, name: str, coordinator: str, wrong: list[str]) -> None:
        self.name, self.seen, self.wrong = name, list[tuple[int, tuple[str, ...]]](), wrong
        self.over = threading.Event()
        group = init(coordinator, name, listen="127.0.0.1:0", timeout=90.0)
        assert group is not None
        self.group = group
        self.thread = threading.Thread(target=self.live, daemon=True)
        self.thread.start()

    def live(self) -> None:
        try:
            state = self.group.agree(np.zeros(4 * VALUES, np.uint8), 0)
            while not self.over.is_set():
                own = np.full(VALUES, float(10 * state.round + ord(self.name)), np.float32)
                try:
                    found = self.group.average(own, round=state.round)
                except Behind:
                    state = self.group.agree(state.data, state.round)
                    continue
                wanted = np.mean([10 * state.round + ord(name) for name in found.sites])
                if not np.allclose(own, wanted, rtol=1e-6):
                    self.wrong.append(f"{self.name}, round {state.round}: {own[0]}, not {wanted}")
                data = (state.data.view(np.float32) + own).view(np.uint8)
                self.seen.append((state.round, found.sites))
                self.group.offer(data, state.round + 1)
                state = type(state)(state.round + 1, "", data)
                self.over.wait(0.02)
        except OverlayError as error:
            if not self.over.is_set():
                self.wrong.append(f"{self.name}: {type(error).__name__}: {error}")

    def close(self) -> None:
        self.over.set()
        self.group.agent.close()
        self.thread.join(30)


def go_on(sites: Mapping[str, Training], names: Sequence[str], wrong: list[str], lines: Sequence[str] = ()) -> None:
    """Wait until the sites of these names, and no others, have done three more rounds together. lines: a log, of which
    the last lines are shown when something is wrong.
    """
    before = {name: len(sites[name].seen) for name in names}

    def done() -> bool:
        seen = [sites[name].seen[before[name] :] for name in names]
        return all(len(each) > 3 and each[-1][1] == names for each in seen)

    until(lambda: wrong or done())
    assert not wrong, [*wrong, *lines[-30:]]
