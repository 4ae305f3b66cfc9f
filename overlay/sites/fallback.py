"""Does a round that the network of sites gives up over torch.distributed, by all sites of a group or by none.

The first processes of all sites are in one group (gloo), and `init(fallback=group)` is told of it. When a site's
timeout for a round has passed, it does not fail at once: it *promises* to take only the group's result of this round
from now on. Two entries of the group's store then decide, each of which is written once (`compare_set`), so that all
sites read the same:

1. "begin": "yes" by a site that has seen the promises of all, "no" by one that has waited in vain.
2. After "yes" all add their values in the group (one all-reduce), and each says which result it has (SHA-256).
3. "end": "yes" by a site that has seen equal results at all, "no" by one whose all-reduce has failed, or that has
   waited in vain. After "yes" all take the result, after "no" no site does.

So no site takes the group's result while another has, or gets, the network's: a site that has the network's result of a
round has not promised, and never will. It leaves a note of that, so that the others need not wait until the end. A site
that cannot learn how "end" was decided takes no result, and asks again before it submits the round anywhere else.

The store and the group may hang, because their hosts are cut off: all calls are in a thread of their own, and the
trainer waits for it for a limited time. A thread for which nobody waits any more decides nothing.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Callable, Collection
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import numpy as np

from overlay.core.errors import Late, OverlayError
from overlay.sites.packing import Floats

PREFIX = "inart sites"
YES, NO = b"yes", b"no"
POLL_SECONDS = 0.05
MEET_SECONDS = 120.0
"""Seconds that the sites of the group have to call `init`."""

LAST_SECONDS = 5.0
"""Seconds that the trainer waits after its time is over, in which the site's thread decides against the round."""

_log = logging.getLogger("inart.sites")


class Fallback:
    """A process group with one process of each site, and the store in which they decide.

    Args:
        group: a group of torch.distributed, with gloo (values are on the CPU), which nothing else uses.
        store: the store; None for the one with which torch.distributed has made the group.

    Attributes:
        spans: whether torch.distributed's processes are the sites, one process each; else the group was made by
            hand, and torch.distributed may connect the processes within a site.

    Raises:
        OverlayError: the group is unsuitable, or no store is known.
    """

    def __init__(self, group: Any, store: Any = None) -> None:
        import torch.distributed as dist
        from torch.distributed import distributed_c10d

        own: Any
        try:
            own = distributed_c10d._get_process_group_store(group)
        except (KeyError, ValueError, AttributeError, RuntimeError):  # made by hand, or no group at all
            own = None
        self.spans = own is not None
        if isinstance(group, int) or (self.spans and group.size() < dist.get_world_size()):
            raise OverlayError(
                "the fallback is a group of a part of torch.distributed's processes: start one torchrun a site, and "
                "make the group by hand, as docs/sites.md says"
            )
        if own is None and store is None:
            raise OverlayError("no store of the fallback's process group is known: give Fallback(group, store)")
        self.group, self.store = group, dist.PrefixStore(PREFIX, own if store is None else store)


@dataclass
class Attempt:
    """One try to do a round over the group.

    Attributes:
        round: the round.
        number: number of the attempt, among those of the round.
        result: the sum that the all-reduce has given.
        ended: whether all sites take the sum.
        why: why they do not, in words.
    """

    round: int
    number: int = -1
    result: Floats | None = None
    ended: Future[bool] = field(default_factory=Future)
    why: str = ""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _left: bool = False
    _said: bool = False

    def say(self) -> bool:
        """Take note that this site is going to say that it has a result, and return whether its trainer still waits for
        it.
        """
        with self._lock:
            self._said = not self._left
            return self._said

    def leave(self) -> bool:
        """Take note that the trainer waits no longer. Return whether this site has said that it has a result."""
        with self._lock:
            self._left = True
            return self._said

    @property
    def left(self) -> bool:
        return self._left


class Ballot:
    """The votes of one site: it promises, says and reads in the store.

    Args:
        store: the store, which all sites read.
        site: this site's name.
        names: names of all sites, in the group's order.
        add: called as add(values, seconds); replaces the values by their sum over all sites, and returns whether it
            could in this time.
        clock: returns the time in seconds.
        sleep: waits for so many seconds.
    """

    def __init__(
        self, store: Any, site: str, names: tuple[str, ...], add: Callable[[Floats, float], bool], *,
        clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep,
    ) -> None:  # fmt: skip
        self.store, self.site, self.names, self._add = store, site, names, add
        self._clock, self._sleep = clock, sleep

    def took(self, round_: int) -> None:
        """Tell the others that this site has the network's result of the round."""
        self.store.set(f"{round_}/taken", self.site)

    def refuse(self) -> None:
        """Refuse the group, which this site cannot use any more, so that no site can: the others need not wait for this
        one.
        """
        self.store.set("unable", self.site)

    def try_round(self, attempt: Attempt, values: Floats, end: float) -> bool:
        """Return whether the round was done over the group; then attempt.result has the sum. Raise what the store
        raises.

        Args:
            attempt: the attempt.
            values: this site's values.
            end: when to give up, in seconds of the clock.
        """
        attempt.number = self._first_open(attempt.round)
        if not self._all_promise(attempt, end):
            return False
        result = values.copy()
        if attempt.left or not self._add(result, end - self._clock()):
            attempt.why = "the sum over the group was not done"
            return self._decide(attempt, "end", NO)
        attempt.result = result
        if not attempt.say():
            return False
        return self.all_have(attempt, hashlib.sha256(result.tobytes()).digest(), end)

    def ask(self, attempt: Attempt) -> bool:
        """Return how an attempt has ended in which this site has said that it has a result; end it now where it has not
        ended.
        """
        return self._decide(attempt, "end", NO)

    def _first_open(self, round_: int) -> int:
        """Return the first attempt of this round that was not decided with "no": the same at all sites."""
        number = 0
        while any(self._read(f"{round_}/{number}/{what}") == NO for what in ("begin", "end")):
            number += 1
        return number

    def _all_promise(self, attempt: Attempt, end: float) -> bool:
        keys = [f"{attempt.round}/{attempt.number}/promise/{name}" for name in self.names]
        self.store.set(keys[self.names.index(self.site)], "1")
        while (decided := self._read(self._key(attempt, "begin"))) is None:
            if self.store.check(keys):
                self._decide(attempt, "begin", YES)
            elif (taker := self._read(f"{attempt.round}/taken")) is not None:
                attempt.why = f"{taker.decode()} has the result of the network"
                self._decide(attempt, "begin", NO)
            elif (unable := self._read("unable")) is not None:
                attempt.why = f"{unable.decode()} cannot use the group any more"
                self._decide(attempt, "begin", NO)
            elif attempt.left or self._clock() > end:
                late = [name for name, key in zip(self.names, keys, strict=True) if not self.store.check([key])]
                attempt.why = f"{', '.join(late)} did not give up the round over the network"
                self._decide(attempt, "begin", NO)
            else:
                self._sleep(POLL_SECONDS)
        attempt.why = attempt.why or "another site could not do it"
        return decided == YES

    def all_have(self, attempt: Attempt, digest: bytes, end: float) -> bool:
        keys = [f"{attempt.round}/{attempt.number}/have/{name}" for name in self.names]
        self.store.set(keys[self.names.index(self.site)], digest.hex())
        while (decided := self._read(self._key(attempt, "end"))) is None:
            if self.store.check(keys):
                equal = len({self.store.get(key) for key in keys}) == 1
                attempt.why = "" if equal else "the sites have different sums"
                self._decide(attempt, "end", YES if equal else NO)
            elif self._clock() > end:
                attempt.why = "not all sites have the sum"
                self._decide(attempt, "end", NO)
            else:
                self._sleep(POLL_SECONDS)
        attempt.why = attempt.why or "another site does not have the sum"
        return decided == YES

    @staticmethod
    def _key(attempt: Attempt, what: str) -> str:
        return f"{attempt.round}/{attempt.number}/{what}"

    def _decide(self, attempt: Attempt, what: str, wanted: bytes) -> bool:
        """Decide an entry, unless it is decided already. Return whether it is "yes"."""
        decided: bytes = self.store.compare_set(self._key(attempt, what), "", wanted.decode())
        return decided == YES

    def _read(self, key: str) -> bytes | None:
        found: bytes | None = self.store.get(key) if self.store.check([key]) else None
        return found


class Rescue:
    """A site's part in rounds over the group; called by the site's trainer, one call at a time.

    Attributes:
        names: names of all sites of the group.
        unable: why this site cannot use the group any more, in words; empty where it can.

    Raises:
        OverlayError: not all sites of the group call `init`.
    """

    def __init__(self, fallback: Fallback, site: str) -> None:
        self.spans = fallback.spans
        self._group = fallback.group
        store, self.names = self._meet(fallback, site)
        self.ballot = Ballot(store, site, self.names, self._sum)
        self.unable = ""
        self._open: Attempt | None = None  # an attempt whose end this site does not know yet

    def _meet(self, fallback: Fallback, site: str) -> tuple[Any, tuple[str, ...]]:
        """Return the store of this run and the names of all sites."""
        import torch.distributed as dist

        rank, size = self._group.rank(), self._group.size()
        try:
            runs = fallback.store.add(f"runs/{rank}", 1)
            store = dist.PrefixStore(str(runs), fallback.store)
            store.set(f"name/{rank}", site)
            keys = [f"name/{each}" for each in range(size)]
            store.wait(keys, timedelta(seconds=MEET_SECONDS))
            names = tuple(store.get(key).decode() for key in keys)
        except RuntimeError as error:  # DistStoreError among them
            raise OverlayError(f"{site}: the {size} processes of the fallback's group have not all called init within "
                               f"{MEET_SECONDS:.0f} s: {error}") from None  # fmt: skip
        if len(set(names)) < size:
            raise OverlayError(f"the processes of the fallback's group must be different sites, not {', '.join(names)}")
        return store, names

    def _sum(self, values: Floats, seconds: float) -> bool:
        import torch

        end = time.monotonic() + seconds
        try:
            work = self._group.allreduce([torch.from_numpy(values)])
            while not work.is_completed():
                if time.monotonic() > end:
                    raise RuntimeError(f"an all-reduce has not ended within {seconds:.0f} s")
                time.sleep(POLL_SECONDS / 10)
            work.wait()
        except RuntimeError as error:
            self.unable = f"its process group does not work any more: {error}"
            return False
        return True

    def took(self, round_: int) -> None:
        """Tell the others that this site has the network's result of the round: a site without it need not wait for
        this one.
        """
        if not self.unable:
            self._in_thread(lambda: self.ballot.took(round_))

    def left_open(self, round_: int) -> tuple[Floats, tuple[float, ...]] | None:
        """Return the mean and weights that the group has given for a round, in an attempt whose end this site did not
        learn; None where there is no such attempt, or it was not done. To be called before the round is submitted.
        Raise Late where the end of the attempt is still unknown.
        """
        attempt, self._open = self._open, None
        if attempt is None or attempt.round != round_:
            return None
        asked = self._in_thread(lambda: self.ballot.ask(attempt))
        try:
            return self._mean(attempt) if asked.result(LAST_SECONDS) else None
        except Exception as error:
            self._open = attempt
            raise Late(f"whether round {round_} was done over torch.distributed is not known: {error!r}") from None

    def average(
        self, values: Floats, round_: int, weight: float, *, seconds: float, late: Late, members: Collection[str]
    ) -> tuple[Floats, tuple[float, ...]]:
        """Return the weighted mean over all sites of the group, and their weights, when the network has given the round
        up.

        Args:
            values: this site's values.
            round_: the round.
            weight: weight of this site's values.
            seconds: how long this may take.
            late: the error with which the network gave the round up.
            members: the sites that are connected to the coordinator.

        Raises:
            Late: not all sites do the round over the group.
        """
        strangers = sorted(set(members) - set(self.names))
        if strangers:
            self.unable = f"{', '.join(strangers)} trains, too, and is not in its process group"
        if self.unable:
            self._in_thread(self.ballot.refuse)
            raise Late(f"{late}; nor over torch.distributed: {self.unable}") from late
        given = np.zeros(values.size + len(self.names), np.float32)
        np.multiply(values, np.float32(weight), out=given[: values.size])
        given[values.size + self.names.index(self.ballot.site)] = weight
        attempt, end = Attempt(round_), time.monotonic() + seconds
        attempt.ended = self._in_thread(lambda: self.ballot.try_round(attempt, given, end))
        try:
            done = attempt.ended.result(seconds + LAST_SECONDS)
        except Exception as error:  # TimeoutError where the store hangs, or an error of the store
            self.unable = f"its store does not answer: {error!r}"
            if attempt.leave():
                self._open = attempt
            raise Late(f"{late}; nor over torch.distributed: {self.unable}") from late
        if not done:
            raise Late(f"{late}; nor over torch.distributed: {attempt.why}") from late
        _log.warning("%s: round %d was done over torch.distributed, by %s, since the network of sites gave it up: %s",
                     self.ballot.site, round_, ", ".join(self.names), late)  # fmt: skip
        return self._mean(attempt)

    def _mean(self, attempt: Attempt) -> tuple[Floats, tuple[float, ...]]:
        assert attempt.result is not None, "it was done"
        total = attempt.result[-len(self.names) :]
        weights = tuple(float(weight) for weight in total)
        if not sum(weights) > 0:
            raise OverlayError(f"all sites of round {attempt.round} ({', '.join(self.names)}) have weight 0")
        mean: Floats = attempt.result[: -len(self.names)] * np.float32(1 / sum(weights))
        return mean, weights

    @staticmethod
    def _in_thread(act: Callable[[], Any]) -> Future[Any]:
        """Call a function in a thread for which nobody has to wait, and return the future of its result."""
        future: Future[Any] = Future()

        def run() -> None:
            try:
                future.set_result(act())
            except BaseException as error:
                future.set_exception(error)

        threading.Thread(target=run, name="inart sites fallback", daemon=True).start()
        return future
