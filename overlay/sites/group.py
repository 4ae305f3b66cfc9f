"""The sites that train together, as one site sees them: it joins, takes the others' state, and averages with them.

group = inart.sites.init(coordinator="10.0.0.1:9700", site="paris")
average = group.average(values, round=0, weight=samples)      # replaced by the weighted mean, at all sites alike
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from controlplane.common.rpc.tls import FOLDER_FILES, Tls, credentials_folder
from controlplane.common.rpc.tls import credentials as credentials_in
from overlay.core.addresses import parse_address
from overlay.core.errors import Behind, Differs, Late, NameTaken, OverlayError, PeerLost, Unfit
from overlay.net.agent import NOWHERE, Agent
from overlay.net.site_services import NO_CONSTANT, Bytes, Constant, State, digest_of, unpacked_text
from overlay.net.submissions import About, Done
from overlay.net.tls import Security
from overlay.sites.change import Change
from overlay.sites.packing import (
    BITS,
    Floats,
    pack,
    scales_of,
    unpack,
    word_values,
)

if TYPE_CHECKING:
    from overlay.sites.enrolment import SiteRenewal

FLOAT_BITS = 32
TIMEOUT_SECONDS = 600.0
REJOIN_SECONDS = 30.0
"""Longest time, in seconds, that a site which was restarted tries to join: the coordinator may not have noticed yet
that the site's old process is gone.
"""

REMIND_SECONDS = 10.0
"""Seconds between two lines in which a site says that it waits for others, on stderr unless logging is set up
otherwise.
"""

PARTS = "certificate", "key", "authority"
"""Files of a credentials folder for TLS."""

PAUSE_SECONDS = 0.2
AGAIN_SECONDS, MOST_AGAIN_SECONDS = 0.05, 1.0
"""A round that is given up is done again at once, then after AGAIN_SECONDS, and after twice as long each time, up to
MOST_AGAIN_SECONDS: links that break each connection at once would have it done again hundreds of times a second.
"""

COORDINATOR, SITE, LISTEN, ADVERTISE = "INART_COORDINATOR", "INART_SITE", "INART_SITE_LISTEN", "INART_SITE_ADVERTISE"
"""Variables of the environment that `inart site run` sets."""

_log = logging.getLogger("inart.sites")
Made = TypeVar("Made")


@dataclass(frozen=True)
class Averaged:
    """A mean that has replaced a site's values.

    Attributes:
        sites: the sites whose values are in the mean.
        weights: the weights of these sites.
        left: the part of this site's own values that rounding has left out; None where nothing was rounded.
        seconds: time since the values were given.
    """

    sites: tuple[str, ...]
    weights: tuple[float, ...]
    left: Floats | None
    seconds: float


def init(
    coordinator: str | None = None,
    site: str | None = None,
    *,
    credentials: str | Path | None = None,
    listen: str | None = None,
    advertise: str | None = None,
    timeout: float = TIMEOUT_SECONDS,
    log: Callable[[str], None] = _log.info,
) -> SiteGroup | None:
    """Join the sites that train together, from the first process of each site. The site's other processes (torchrun's
    RANK above 0: one torchrun a site) get None; optimisers take None, and get their results from the first process.

    Arguments that are not given are taken from the environment, which `inart site run` sets, except for `timeout` and
    `log`.

    Args:
        coordinator: HOST:PORT of `inart site coordinator`. A host name is resolved for each connection.
        site: this site's name, as on its certificate (default: the host's name).
        credentials: a folder of `inart certificates` or `inart site token`; without one nothing is encrypted. A token
            in it is exchanged for a certificate, which is added to the folder.
        listen: HOST:PORT at which other sites connect to this one (default: any port of all addresses, IPv6 ones
            where the coordinator's is).
        advertise: the address that other sites are told instead, or "none" where they cannot connect to this site:
            then it opens all connections.
        timeout: seconds that anything may take before it fails.
        log: gets each line of log.

    Raises:
        OverlayError: says what is wrong, and which sites are missing.
    """
    if int(os.environ.get("RANK") or 0) > 0:
        return None
    where = coordinator or os.environ.get(COORDINATOR)
    if not where:
        raise OverlayError("no coordinator is known: give coordinator='HOST:PORT', or start with `inart site run`")
    name = site or os.environ.get(SITE) or socket.gethostname()
    try:
        at = parse_address(where)
        own = parse_address(listen or os.environ.get(LISTEN) or _everywhere(at))
        told = advertise or os.environ.get(ADVERTISE)
        renewal = _enrolled(at, name, credentials_folder(None if credentials is None else Path(credentials)), log)
        security = Security.of(credentials_in(None if credentials is None else Path(credentials)))
        outside = NOWHERE if told == "none" else parse_address(told) if told else None
    except ValueError as error:
        raise OverlayError(str(error)) from None
    end = time.monotonic() + REJOIN_SECONDS
    while True:
        agent = Agent(at, name, listen=own, advertise=outside, security=security, log=log)
        try:
            agent.wait_joined()
            if renewal is not None:
                renewal.start()
            return SiteGroup(agent, timeout=timeout, renewal=renewal, log=log)
        except OverlayError as error:
            agent.close()
            if not isinstance(error, NameTaken) or time.monotonic() > end:
                raise
            time.sleep(PAUSE_SECONDS)


def _enrolled(
    coordinator: tuple[str, int], site: str, folder: Path | None, log: Callable[[str], None]
) -> SiteRenewal | None:
    """Exchange the folder's token for a certificate, if there is a token. Return the renewal of the certificate, which
    has not begun; None without a token.
    """
    if folder is None or not (folder / FOLDER_FILES["token"]).is_file():
        return None
    from overlay.sites.enrolment import SiteRenewal, enrol

    enrol(coordinator, site, folder)
    return SiteRenewal(coordinator, Tls(*(folder / FOLDER_FILES[part] for part in PARTS)), log)


def _everywhere(coordinator: tuple[str, int]) -> str:
    """Return the address that means all of this machine, of the kind (IPv4 or IPv6) over which it reaches the
    coordinator: other sites are told the address that the coordinator sees.
    """
    try:
        family = socket.getaddrinfo(*coordinator, type=socket.SOCK_STREAM)[0][0]
    except OSError:  # the coordinator's name cannot be resolved yet
        family = socket.AF_INET
    return "[::]:0" if family == socket.AF_INET6 else "0.0.0.0:0"


class SiteGroup:
    """One site's membership in the group; a context manager. Methods wait for their end; call them from one thread at a
    time.
    """

    def __init__(
        self, agent: Agent, *, timeout: float = TIMEOUT_SECONDS, renewal: SiteRenewal | None = None,
        log: Callable[[str], None] = _log.info,
    ) -> None:  # fmt: skip
        self._renewal = renewal
        self.agent, self.timeout, self._log = agent, timeout, log
        self.site = agent.node

    def members(self) -> list[str]:
        """Return the names of the sites that are connected now."""
        return self.agent.site.members()

    def bytes_sent(self) -> int:
        """Return the bytes that this site has sent to other sites."""
        return sum(self.agent.statistics()["bytes_sent"].values())

    # --- the state that all sites share ---

    def agree(self, data: Bytes, round: int, about: str = "", constant: Constant = NO_CONSTANT) -> State:
        """Compare this site's state with the others', and return the state to go on with: this site's own, or another
        site's, whose digest has been checked. Afterwards the others count on this site. Of sites that begin together,
        the state before the highest round is taken, and among equals that of the first name.

        Args:
            data: the state, as bytes (uint8, one dimension), which must not change any more.
            round: the state is that before this round.
            about: text that has to be the same at all sites, such as a description of the model.
            constant: a part of the state that changes seldom.

        Raises:
            Late: too few sites have joined in time.
            Differs: another site has another text `about`. Sites that begin together all raise it; if sites train
                already, only this one does.
        """
        state = State(round, digest_of(data, constant.digest), data, constant)
        end = time.monotonic() + self.timeout
        while True:
            answer = self._wait(
                self.agent.site.here(state, about), end, "the other sites have not said whose state to take"
            )
            if "about" in answer:
                site = str(answer["from"])
                raise Differs(f"{self.site}: {site} has another description", site, unpacked_text(str(answer["about"])))
            if answer["from"] is None:
                return state
            try:
                fetched = self._wait(self.agent.site.fetch(answer["from"]), end, "the state has not come")
            except PeerLost as error:
                self._log(f"{self.site}: {error}")
                continue
            if digest_of(fetched.data, Constant.of(fetched.constant.arrays).digest) != fetched.digest:
                raise OverlayError(f"{self.site}: the state of {answer['from']} does not have the digest that it said")
            if (fetched.round, fetched.digest) == (state.round, state.digest):
                time.sleep(PAUSE_SECONDS)  # the other site has not offered its next state yet
            state = fetched

    def offer(self, data: Bytes, round: int, constant: Constant = NO_CONSTANT) -> None:
        """Offer the state before this round to sites that join. The data must not change any more."""
        self.agent.site.offer(State(round, digest_of(data, constant.digest), data, constant))

    # --- averages ---

    def average(self, values: Floats, *, round: int, weight: float = 1.0, bits: int = FLOAT_BITS) -> Averaged:
        """Replace `values` by their weighted mean over all sites that take part in this round, with the same bits at
        each.

        Sites that are lost meanwhile are left out, and the others do the round.

        Args:
            values: float32, one dimension, contiguous; the same number at all sites.
            round: number of the round, one more each time.
            weight: weight of this site's values (samples), from 0 on. If all sites have weight 0, the values become 0.
            bits: 32 (float32), or 16, 8 or 4 for integers, which sites add (packing.py).

        Raises:
            Behind: the others have done this round already; `agree` gives their state.
            Late: the time has passed; the message names the sites that are missing.
        """

        def attempt(about: About, end: float) -> tuple[Done, Floats | None]:
            if bits == FLOAT_BITS:
                return self._average_floats(values, about, end)
            return self._average_fields(values, about, bits, end)

        return self._average(attempt, About(round, "sum", weight), bits)

    def average_change(
        self, change: Change, *, round: int, weight: float = 1.0, bits: int = FLOAT_BITS
    ) -> tuple[Averaged, dict[int, Floats]]:
        """Return the mean of all sites' changes, as `average` has it, by the number of the tensor. Tensors that have
        changed at no site are not sent, a scale belongs to one tensor only, and a change whose norm is too large is
        reduced (`Change`).

        Raises:
            OverlayError: as `average` does.
        """
        mean: dict[int, Floats] = {}

        def attempt(about: About, end: float) -> tuple[Done, Floats | None]:
            values, sizes = change.sent()
            about = replace(about, contents=change.contents)
            if bits == FLOAT_BITS or not change.contents.tensors:
                done, left = self._average_floats(values, about, end)
            else:
                done, left = self._average_fields(values, about, bits, end, sizes)
            mean.update(change.split(values))
            return done, left

        return self._average(attempt, About(round, "sum", weight), bits, change), mean

    def _average(
        self, attempt: Callable[[About, float], tuple[Done, Floats | None]], about: About, bits: int,
        change: Change | None = None,
    ) -> Averaged:  # fmt: skip
        """Do a round with as many attempts as it takes."""
        if bits != FLOAT_BITS and bits not in BITS:
            raise ValueError(f"bits are {FLOAT_BITS} or one of {', '.join(map(str, BITS))}, not {bits}")
        if not 0 <= about.weight < float("inf"):
            raise ValueError(f"a weight is a number from 0 on, got {about.weight}")
        began, pause = time.monotonic(), 0.0
        while True:
            try:
                done, left = attempt(about, began + self.timeout)
                self.agent.site.did(about.round, done.participants)
                if not any(done.weights):
                    self._log(f"{self.site}: round {about.round}: all sites have weight 0, so nothing is averaged")
                return Averaged(done.participants, done.weights, left, time.monotonic() - began)
            except Unfit as unfit:
                assert change is not None, "values of any contents fit"
                if unfit.contents.norm < change.contents.norm:
                    self.report("bounded", str(unfit).removeprefix(f"{self.site}: "))
                change.adapt(unfit.contents)
                if time.monotonic() > began + self.timeout:
                    raise Late(str(unfit)) from None
            except PeerLost as error:
                self._log(f"{self.site}: round {about.round} is done again: {error}")
                if time.monotonic() + pause > began + self.timeout:
                    raise Late(str(error)) from None
                time.sleep(pause)
                pause = min(max(AGAIN_SECONDS, 2 * pause), MOST_AGAIN_SECONDS)

    def _average_floats(self, values: Floats, about: About, end: float) -> tuple[Done, Floats | None]:
        weighted = values * np.float32(about.weight) if about.weight else np.zeros_like(values)
        done = self._synchronise(weighted, about, end)
        if total := sum(done.weights):
            np.multiply(weighted, np.float32(1 / total), out=values)
        else:
            values[:] = 0
        return done, None

    def _average_fields(
        self, values: Floats, about: About, bits: int, end: float, sizes: tuple[int, ...] = ()
    ) -> tuple[Done, Floats | None]:
        scales = scales_of(values, sizes)
        if not about.weight:
            scales[:] = 0  # nothing of the values is in the mean
        done = self._synchronise(scales, replace(about, op="maximum"), end)
        about = replace(about, op="words", contents=None)
        sites, total = len(done.participants), sum(done.weights)
        if not total:
            values[:] = 0
        if sites == 1 or not total:
            return self._without_values(values, about, end)
        words, left = pack(values, scales, about.weight / total, bits, sites, sizes=sizes)
        second = self._synchronise(words, about, end)
        if (second.participants, second.weights) != (done.participants, done.weights):
            raise OverlayError(f"{self.site}: round {about.round} has scales of {done.participants} and sums of "
                               f"{second.participants}")  # fmt: skip
        unpack(words, scales, bits, sites, values, sizes=sizes)
        return second, left

    def _without_values(self, values: Floats, about: About, end: float) -> tuple[Done, Floats | None]:
        """Do a round in which nothing has to be added, of a single site or of sites with weight 0: report it as done,
        and keep the values as they are.
        """
        nothing = np.zeros(word_values(1, FLOAT_BITS // 2, 1), np.float32)
        return self._synchronise(nothing, about, end), np.zeros_like(values)

    def _synchronise(self, tensor: Floats, about: About, end: float) -> Done:
        return self.agent.synchronise(tensor, max(0.1, end - time.monotonic()), about=about)

    def report(self, kind: str, words: str) -> None:
        """Report something unusual about this site's change, in the log of this site and in that of the coordinator,
        which counts it.

        Args:
            kind: "not finite" or "bounded".
            words: description for people.
        """
        _log.warning("%s: %s", self.site, words)
        self.agent.site.report(kind, words)

    def _wait(self, future: Future[Made], end: float, what: str) -> Made:
        while True:
            left = end - time.monotonic()
            try:
                return future.result(max(0.1, min(left, REMIND_SECONDS)))
            except TimeoutError:
                here = ", ".join(self.members()) or "nobody"
                said = f"{here} joined (`inart site status` says more)"
                if left < REMIND_SECONDS:
                    raise Late(f"{self.site}: {what} within {self.timeout:.0f} s; {said}") from None
                _log.warning("%s waits: %s yet; %s", self.site, what, said)

    def close(self) -> None:
        """Leave the group: the others go on without this site. Chunks that it still passes on for others are sent
        first.
        """
        if self._renewal is not None:
            self._renewal.close()
        self.agent.leave()

    def __enter__(self) -> SiteGroup:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


__all__ = ["Averaged", "Behind", "Late", "OverlayError", "SiteGroup", "init"]
