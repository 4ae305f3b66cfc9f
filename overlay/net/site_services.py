"""The work of one site's agent beside tasks: it measures links to other sites, and exchanges the trainer's state.

A state is bytes that only trainers understand, with the number of the round before which it is and its SHA-256. An
agent keeps the latest one that its trainer has offered, and sends it to any member that asks, behind the chunks of
tasks. The agent that asked checks the digest.
"""

from __future__ import annotations

import asyncio
import base64
import concurrent.futures
import hashlib
import json
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overlay.core.errors import OverlayError, PeerLost
from overlay.core.link_rate import WARM_UP, LinkRate
from overlay.core.message import Header, Kind, Values
from overlay.core.site_quorum import History, after, history_of, newer
from overlay.net.losses import Losses
from overlay.net.membership import Membership
from overlay.net.neighbours import Neighbours

Bytes = NDArray[np.uint8]

PIECE_BYTES = 1 << 16
PIECE_PRIORITY = 5
"""Priority of the pieces of a state in a connection's queue: chunks of tasks, whose priority is 0, go before them."""

STALLED_SECONDS = 20.0
"""Seconds without a piece after which a state that is arriving is given up; the coordinator names another site then."""

PROBE_VALUES = 1024, 65_536
"""Least and most values of a measurement's messages: slow links carry a few small ones, fast ones large ones."""

PROBE_MESSAGE_SECONDS = 0.02
"""Time, in seconds, that a measurement's message takes at the rate seen so far. The values that a connection still
holds when the measurement is over delay all other messages until they have left.
"""

TEXT_CHARACTERS = 1 << 19
"""Maximum length of a text that sites compare, as it is sent to the coordinator."""

TEXT_BYTES = 1 << 25
"""Maximum length of such a text that another site has sent, in bytes."""

TRIPS_SECONDS = 8.0
"""Time, in seconds, in which connections to all other sites have to be open: a site that others cannot connect to opens
connections when the trial of these is over (neighbours.py).
"""

TRIPS_POLL_SECONDS = 0.05


@dataclass(frozen=True)
class Constant:
    """The part of a state that changes seldom, so that its digest need not be computed for each round.

    Attributes:
        arrays: the values, which must not change any more.
        digest: SHA-256 of the values, in hexadecimal digits.
    """

    arrays: tuple[Bytes, ...] = ()
    digest: str = ""

    @classmethod
    def of(cls, arrays: Sequence[Bytes]) -> Constant:
        """Return the constant of these arrays, with its digest."""
        digest = hashlib.sha256()
        for array in arrays:
            digest.update(array.data)
        return cls(tuple(arrays), digest.hexdigest() if arrays else "")


NO_CONSTANT = Constant()


@dataclass(frozen=True)
class State:
    """A trainer's state.

    Attributes:
        round: the state is that before this round.
        digest: the state's digest (`digest_of`).
        data: the part of the state that changes in each round.
        constant: the other part.
    """

    round: int
    digest: str
    data: Bytes
    constant: Constant = NO_CONSTANT


def packed_text(text: str) -> str:
    """Return a text in the form in which it fits into a message; "" for one that is too long for that."""
    packed = base64.b64encode(zlib.compress(text.encode())).decode()
    return packed if len(packed) <= TEXT_CHARACTERS else ""


def unpacked_text(packed: str) -> str:
    """Return the text of which `packed_text` has made this; "" if it is none."""
    try:
        return zlib.decompressobj().decompress(base64.b64decode(packed), TEXT_BYTES).decode()
    except (ValueError, zlib.error):
        return ""


def digest_of(data: Bytes, constant: str = "") -> str:
    """Return the digest of a state, in hexadecimal digits: SHA-256 of its data, and of the digest of its constant part
    if there is one.
    """
    digest = hashlib.sha256(data.data).hexdigest()
    return hashlib.sha256(f"{digest} {constant}".encode()).hexdigest() if constant else digest


@dataclass
class _Fetching:
    """A state that is arriving.

    Attributes:
        pieces: its pieces by position; the first one describes the others.
        heard: when the last piece arrived, in seconds of the loop.
    """

    peer: str
    future: concurrent.futures.Future[State]
    heard: float
    pieces: dict[int, Values] = field(default_factory=dict)


class SiteServices:
    """The work of one site's agent beside tasks. Methods for trainers may be called from any thread; all others are
    called in the agent's loop.
    """

    def __init__(
        self, node: str, loop: asyncio.AbstractEventLoop, membership: Membership, neighbours: Neighbours
    ) -> None:
        self._node, self._loop, self._membership, self._neighbours = node, loop, membership, neighbours
        self.losses = Losses(neighbours.peers).since
        self._offered: State | None = None
        self._here: concurrent.futures.Future[dict[str, Any]] | None = None
        self._is_active = False
        self._about = "", "", ""  # the text that has to be the same at all sites, its digest, and the text packed
        self._told_epoch = 0  # epoch of the coordinator that knows this site's state
        self._numbers = count(1)
        self._fetching: dict[int, _Fetching] = {}
        self._nothing = np.zeros(PROBE_VALUES[1], np.float32)
        self._ended: OverlayError | None = None
        self.network: dict[str, Any] | None = None  # as the coordinator knows it (`SiteDesk`)
        self.history: History = ()  # of the state that this site goes on from (site_quorum.py)

    # --- for trainers ---

    def did(self, round_: int, sites: Sequence[str]) -> None:
        """Take note that these sites have done a round; to be called before the state after it is offered."""
        self._soon(self._did, round_, tuple(sites))

    def offer(self, state: State) -> None:
        """Offer this state to other sites from now on."""
        self._soon(self._offer, state)

    def report(self, kind: str, words: str) -> None:
        """Report a problem of this site's values to the coordinator, if one answers (`SiteDesk`)."""
        self._soon(self._report, kind, words)

    def here(self, state: State, about: str = "") -> concurrent.futures.Future[dict[str, Any]]:
        """Offer the state, and ask the coordinator whether it is that of the other sites. In the answer, "from" is the
        site whose state to fetch instead, with its "round"; None where the state is right, and the others count on this
        site. If the text `about` differs from that of the site "from", the answer has that one's, packed, as "about".
        """
        future: concurrent.futures.Future[dict[str, Any]] = concurrent.futures.Future()
        self._soon(self._ask, state, about, future)
        return future

    def fetch(self, peer: str) -> concurrent.futures.Future[State]:
        """Fetch the latest state that another site has offered. The future raises OverlayError (PeerLost where the
        coordinator has to be asked for another site).
        """
        future: concurrent.futures.Future[State] = concurrent.futures.Future()
        self._soon(self._fetch, peer, future)
        return future

    def members(self) -> list[str]:
        """Return the sites that are connected to the coordinator, as it has said last."""
        return sorted(self._neighbours.members)

    def _soon(self, act: Callable[..., None], *arguments: object) -> None:
        """Call a function in the loop. Raise OverlayError when the agent was closed."""
        try:
            self._loop.call_soon_threadsafe(act, *arguments)
        except RuntimeError:  # the loop is closed
            raise OverlayError(f"{self._node}: the agent was closed") from None

    # --- in the loop ---

    def _did(self, round_: int, sites: tuple[str, ...]) -> None:
        self.history = newer(self.history, after(self.history, round_, self._membership.term, sites))

    def _report(self, kind: str, words: str) -> None:
        self._membership.tell(type="site", what="problem", kind=kind, words=words)

    def _offer(self, state: State) -> None:
        self._offered = state
        self._tell("state")

    def _tell(self, what: str) -> None:
        assert self._offered is not None, "a site says what it has offered"
        about = {"model": self._about[1], "about": self._about[2]} if what == "here" else {}
        self._membership.tell(
            type="site", what=what, round=self._offered.round, digest=self._offered.digest, active=self._is_active,
            history=self.history, losses=self.losses(), **about,
        )  # fmt: skip

    def _ask(self, state: State, about: str, future: concurrent.futures.Future[dict[str, Any]]) -> None:
        if self._ended is not None:
            future.set_exception(self._ended)
            return
        self._offered, self._here, self._is_active = state, future, False
        if about != self._about[0]:
            self._about = about, hashlib.sha256(about.encode()).hexdigest(), packed_text(about)
        self._tell("here")

    def introduced(self) -> None:
        """Handle that a coordinator has said who the members are. Where it is a new one, it is told of this site's
        state.
        """
        for number, each in list(self._fetching.items()):
            if each.peer not in self._neighbours.members:
                self._fail(number, PeerLost(f"{each.peer} was lost while its state was arriving"))
        epoch, self._told_epoch = self._told_epoch, self._neighbours.epoch
        if epoch != self._told_epoch and self._offered is not None and (self._here is not None or self._is_active):
            self._tell("here")

    def coordinator_left(self) -> None:
        """Have the next coordinator, the same or another one, told of this site's state again."""
        self._told_epoch = 0

    def said(self, message: dict[str, Any]) -> None:
        """Handle a message of the type "site" from the coordinator."""
        what = message["what"]
        if what == "take":
            self._is_active = message["from"] is None
            if self._is_active:  # else this site does not have the state of these rounds yet
                # Of two rounds with one number and term the coordinator's counts; this site's ended nowhere else.
                self.history = newer(history_of(message.get("history", ())), self.history)
            future, self._here = self._here, None
            if future is not None:
                future.set_result(message)
        elif what == "network":
            if self.network is None or message["surveyed"]:
                self.network = message
        elif what == "tell network":
            if self.network is not None and self.network["surveyed"]:
                self._membership.tell(
                    type="site", what="network", network=self.network["network"], surveyed=self.network["surveyed"]
                )  # fmt: skip
        elif what == "probe":
            self._probe(str(message["to"]), int(message["number"]), float(message["seconds"]))
        elif what == "trips":
            self._say_trips(self._loop.time() + TRIPS_SECONDS)

    def fail_all(self, error: OverlayError) -> None:
        """Let all futures that are not done raise the error: the agent ends."""
        self._ended = error
        for number in list(self._fetching):
            self._fail(number, error)
        future, self._here = self._here, None
        if future is not None:
            future.set_exception(error)

    def received(self, sender: str, header: Header, values: Values) -> None:
        """Handle a FETCH or PIECE of another site. A PROBE needs no answer: its sender's kernel knows when it came."""
        if header.kind == Kind.FETCH:
            self._serve(sender, header.task)
        elif header.task in self._fetching and self._fetching[header.task].peer == sender:
            self._piece(header, values)

    # --- measuring ---

    def _say_trips(self, until: float) -> None:
        """Tell the coordinator the round trips as soon as there is a connection to every member that has a link to this
        one, or at the time `until`.
        """
        trips = self._neighbours.round_trips()
        others = {name for name in self._neighbours.members if self._neighbours.linked(name)} - {self._node}
        if others - trips.keys() and self._loop.time() < until:
            self._loop.call_later(TRIPS_POLL_SECONDS, self._say_trips, until)
        else:
            self._membership.tell(type="site", what="trips", trips=trips)

    def _probe(self, to: str, number: int, seconds: float) -> None:
        """Send values to another site for so many seconds, as fast as its connection takes them; report the rate."""
        rate = LinkRate(self._loop.time, lambda: self._acknowledged(to), lambda: self._quiet(to), seconds)
        adapt_at = [rate.began + WARM_UP / 2 * seconds]
        least, most = PROBE_VALUES

        def post() -> None:
            if to not in self._neighbours.members or self._ended is not None:
                return
            if adapt_at and self._loop.time() > adapt_at[0]:  # new connections need the rest of the warm-up
                adapt_at.clear()
                self._neighbours.adapt_to(to)
            if rate.read():
                self._report_rate(to, number, rate.mbps, self._sent(to), self._loop.time() + seconds)
                return
            size = max(least, min(most, int(rate.bytes_per_second() * PROBE_MESSAGE_SECONDS) // 4))
            path = self._neighbours.path(self._node, to)
            header = Header(Kind.PROBE, self._neighbours.epoch, number, path, 1, values=size)
            self._neighbours.send(PIECE_PRIORITY, header, self._nothing[:size], taken)

        def taken() -> None:
            self._loop.call_soon(post)

        post()

    def _report_rate(self, to: str, number: int, mbps: float, sent: int, until: float) -> None:
        """Report a measured rate as soon as all that was sent has arrived, so that the next measurement finds no queue,
        or at the time `until`.
        """
        if self._acknowledged(to) < sent and self._loop.time() < until:
            self._loop.call_later(PROBE_MESSAGE_SECONDS, self._report_rate, to, number, mbps, sent, until)
        else:
            self._membership.tell(type="site", what="probed", receiver=to, number=number, mbps=mbps)

    def _quiet(self, other: str) -> float:
        """Return the seconds since bytes that were sent to another site have arrived there."""
        peer = self._neighbours.peers.get(other)
        return 0.0 if peer is None else peer.quiet_seconds()

    def _sent(self, other: str) -> int:
        """Return how many bytes were sent to another site."""
        peer = self._neighbours.peers.get(other)
        return 0 if peer is None else peer.bytes_sent

    def _acknowledged(self, other: str) -> int:
        """Return how many of the bytes that were sent to another site have arrived there."""
        peer = self._neighbours.peers.get(other)
        return 0 if peer is None else peer.acknowledged()

    # --- states ---

    def _serve(self, to: str, number: int) -> None:
        """Send another site the state that was offered last; do nothing where there is none."""
        state = self._offered
        if state is None or to not in self._neighbours.members:
            return
        arrays = state.data, *state.constant.arrays
        about = {"round": state.round, "digest": state.digest, "bytes": [array.size for array in arrays]}
        words = json.dumps(about).encode()
        words += b" " * (-len(words) % 4)
        pieces: list[Values] = [np.frombuffer(words, np.float32)]
        for array in arrays:
            whole = array.size - array.size % 4
            full = array[:whole].view(np.float32)
            pieces += [full[k : k + PIECE_BYTES // 4] for k in range(0, full.size, PIECE_BYTES // 4)]
            if array.size > whole:
                rest = np.zeros(4, np.uint8)
                rest[: array.size - whole] = array[whole:]
                pieces.append(rest.view(np.float32))
        path = self._neighbours.path(self._node, to)
        for position, values in enumerate(pieces):
            header = Header(
                Kind.PIECE, self._neighbours.epoch, number, path, 1, chunk=position, values=len(values),
                contributors=len(pieces),
            )  # fmt: skip
            self._neighbours.send(PIECE_PRIORITY, header, values)

    def _fetch(self, peer: str, future: concurrent.futures.Future[State]) -> None:
        if self._ended is not None or peer not in self._neighbours.members:
            future.set_exception(self._ended or PeerLost(f"{peer} is not a member now"))
            return
        number = next(self._numbers)
        self._fetching[number] = _Fetching(peer, future, self._loop.time())
        path = self._neighbours.path(self._node, peer)
        header = Header(Kind.FETCH, self._neighbours.epoch, number, path, 1)
        self._neighbours.send(0, header, np.empty(0, np.float32))
        self._loop.call_later(STALLED_SECONDS, self._watch, number)

    def _watch(self, number: int) -> None:
        each = self._fetching.get(number)
        if each is None:
            return
        left = each.heard + STALLED_SECONDS - self._loop.time()
        if left > 0:
            self._loop.call_later(left, self._watch, number)
        else:
            words = f"{each.peer} has sent nothing of its state for {STALLED_SECONDS:.0f} s"
            self._fail(number, PeerLost(words))

    def _fail(self, number: int, error: OverlayError) -> None:
        self._fetching.pop(number).future.set_exception(error)

    def _piece(self, header: Header, values: Values) -> None:
        each = self._fetching[header.task]
        each.heard = self._loop.time()
        each.pieces[header.chunk] = values
        if len(each.pieces) < header.contributors:
            return
        del self._fetching[header.task]
        try:
            about = json.loads(each.pieces[0].tobytes())
            data = np.concatenate([each.pieces[k].view(np.uint8) for k in range(1, header.contributors)] or
                                  [np.empty(0, np.uint8)])  # fmt: skip
            arrays, first = [], 0
            for size in map(int, about["bytes"]):
                arrays.append(data[first : first + size])
                first += size + -size % 4
            if first != data.size:
                raise ValueError(f"{data.size} bytes have arrived, not {first}")
            state = State(int(about["round"]), str(about["digest"]), arrays[0], Constant(tuple(arrays[1:])))
        except (ValueError, KeyError, TypeError, IndexError) as error:
            each.future.set_exception(PeerLost(f"the state from {each.peer} cannot be read: {error!r}"))
            return
        each.future.set_result(state)
