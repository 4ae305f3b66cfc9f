"""The simulator: flows on resources, timers, and callbacks that decide what happens next.

It is at flow level: there are no packets and no congestion control; a flow has at every instant the rate that the
sharing rule gives it.

- "fair": per-flow max-min, strict priorities between classes (a lower number goes first);
- "fcfs": in each class, and between classes, the flow that came first takes what its resources have left, then the
  next one.

Time is in seconds, rates in Mbit/s, sizes in Mbit. The same calls give the same events in the same order.
"""

from __future__ import annotations

import ctypes
import heapq
import math
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from controlplane.planner.simulate.native import (
    SimulationError,
    address,
    existing,
    existing_many,
    ids_of,
    library,
    reals_of,
    refused,
)

Sharing = Literal["fair", "fcfs"]
_ONE_ID, _TWO_IDS, _ONE_REAL = ctypes.c_int32 * 1, ctypes.c_int32 * 2, ctypes.c_double * 1


class Simulator:
    """A simulated network: resources 0 .. n-1 with capacities in Mbit/s (infinity: no limit; 0: out of order), and
    flows on them.
    """

    def __init__(self, capacities: ArrayLike, sharing: Sharing = "fair") -> None:
        values = reals_of(capacities).ravel()
        if sharing not in ("fair", "fcfs"):
            raise SimulationError(f'sharing must be "fair" or "fcfs", got {sharing!r}')
        if np.isnan(values).any() or (values < 0).any():
            raise SimulationError("capacities must be numbers >= 0")
        self._lib = library()
        self._n = len(values)
        self._sim = self._lib.fs_new(self._n, address(values), sharing == "fcfs")
        if not self._sim:
            raise MemoryError("no memory for the simulator")
        self._callbacks: list[Callable[[int], None] | None] = []
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._n_timers = 0
        self._n_flows = 0
        self._stopped = False

    def __del__(self) -> None:
        if getattr(self, "_sim", None):
            self._lib.fs_free(self._sim)
            self._sim = None

    @property
    def now(self) -> float:
        return self._lib.fs_now(self._sim)

    @property
    def active(self) -> int:
        """The number of flows that are not finished (with or without bandwidth)."""
        return self._lib.fs_active(self._sim)

    @property
    def flows(self) -> int:
        """The number of all flows so far, promised ones included."""
        return self._n_flows

    # --- time ---

    def at(self, time: float, callback: Callable[[], None]) -> None:
        """Call back at `time`; callbacks for the same time come in the order in which they were asked for."""
        if not time >= self.now:
            raise SimulationError(f"time {time} is not after now ({self.now})")
        heapq.heappush(self._timers, (time, self._n_timers, callback))
        self._n_timers += 1

    def after(self, delay: float, callback: Callable[[], None]) -> None:
        if not delay >= 0:
            raise SimulationError(f"a delay must be >= 0, got {delay}")
        self.at(self.now + delay, callback)

    # --- resources ---

    def set_capacity(self, resource: int, mbps: float) -> None:
        """Set the capacity of a resource from now on."""
        if not mbps >= 0:
            raise SimulationError(f"a capacity must be >= 0, got {mbps}")
        self._lib.fs_set_capacity(self._sim, existing("resource", resource, self._n), mbps)

    def carried(self, resource: int) -> float:
        """Return the Mbit that the resource has carried until now."""
        return self._lib.fs_carried(self._sim, existing("resource", resource, self._n))

    # --- flows ---

    def groups(self, count: int, callback: Callable[[int], None] | None) -> range:
        """Make `count` new groups and return their numbers; `callback(group)` is called each time that a group's last
        flow (or hold) is gone.
        """
        first = self._lib.fs_groups(self._sim, count, callback is not None)
        if first < 0:
            raise MemoryError("no memory for groups")
        self._callbacks.extend([callback] * count)
        return range(first, first + count)

    def on_done(self, group: int, callback: Callable[[int], None] | None) -> None:
        """Replace the callback of the group."""
        self._callbacks[group] = callback
        self._lib.fs_watch(self._sim, group, callback is not None)

    def hold(self, group: int) -> None:
        """Keep the group from being done before a `release`, as more flows are to come."""
        self._lib.fs_hold(self._sim, group)

    def release(self, group: int) -> None:
        self._lib.fs_release(self._sim, group)

    def send(
        self,
        size: float,
        path: Sequence[int],
        callback: Callable[[], None] | None = None,
        *,
        priority: int = 0,
        group: int | None = None,
        coefficients: Sequence[float] | None = None,
    ) -> int:
        """Start one flow and return its number: `size` Mbit over all resources of `path` at one rate (an L3 multicast
        takes those of all its branches).

        `coefficients` say how much of each resource a unit of rate takes (default 1). A flow has a callback for its
        end, or belongs to a group.
        """
        if group is None:
            group = self.groups(1, None if callback is None else lambda _: callback())[0]
        elif callback is not None:
            raise SimulationError("give a callback or a group, not both")
        if coefficients is not None and len(coefficients) != len(path):
            raise SimulationError(f"{len(path)} resources need as many coefficients, got {len(coefficients)}")
        if len(set(path)) != len(path):
            raise SimulationError(f"a resource is named twice in {list(path)}: give it a coefficient of 2 instead")
        count = len(path)
        first = self._lib.fs_add(  # ctypes' own arrays: for one flow, numpy's take three times as long
            self._sim,
            1,
            _ONE_ID(group),
            _ONE_REAL(size),
            _TWO_IDS(0, count),
            (ctypes.c_int32 * count)(*path),
            None if coefficients is None else (ctypes.c_double * count)(*coefficients),
            _ONE_ID(priority) if priority else None,
            None,
        )
        if first < 0:
            raise refused(first, path, [group], [size], self._n)
        self._n_flows += 1
        return first

    def send_many(
        self,
        sizes: ArrayLike,
        resources: ArrayLike,
        groups: ArrayLike,
        *,
        priority: int = 0,
        after: ArrayLike | None = None,
    ) -> range:
        """Start flows over one resource each, in the given order, and return their numbers.

        With `after`, flow k is only promised. It counts for its group at once, and arrives at its resource at the
        instant when group after[k] is next done, without a callback. Flows that wait for the same group stand together
        in the arrays.
        """
        size, path, group = reals_of(sizes), ids_of(resources), ids_of(groups)
        if not len(size) == len(path) == len(group):
            raise SimulationError(f"{len(size)} sizes, {len(path)} resources, {len(group)} groups: must be alike")
        wait = None if after is None else ids_of(after)
        if wait is not None and len(wait) != len(size):
            raise SimulationError(f"{len(size)} flows, but {len(wait)} groups to wait for")
        priorities = (
            np.full(len(size), priority, dtype=np.int32) if priority else None
        )  # a variable, so that it lives during the call
        first = self._lib.fs_add(
            self._sim,
            len(size),
            address(group),
            address(size),
            None,
            address(path),
            None,
            None if priorities is None else address(priorities),
            None if wait is None else address(wait),
        )
        if first < 0:
            named = [*group.tolist(), *([] if wait is None else wait.tolist())]
            raise refused(first, path.tolist(), named, size.tolist(), self._n)
        self._n_flows += len(size)
        return range(first, first + len(size))

    def remaining(self, flow: int) -> float:
        """Return the Mbit that a flow has still to send; 0 when it is finished."""
        return self._lib.fs_remaining(self._sim, existing("flow", flow, self._n_flows))

    def remaining_many(self, flows: ArrayLike) -> NDArray[np.float64]:
        """Return the Mbit that each flow has still to send; -1 for finished ones."""
        ids = existing_many(flows, self._n_flows)
        result = np.empty(len(ids))
        self._lib.fs_remaining_many(self._sim, len(ids), address(ids), address(result))
        return result

    def set_groups(self, flows: ArrayLike, groups: ArrayLike) -> None:
        """Move unfinished flows to other groups, one for each flow; the old groups are not called back for that."""
        ids, new = existing_many(flows, self._n_flows), ids_of(groups)
        if len(ids) != len(new):
            raise SimulationError(f"{len(ids)} flows, but {len(new)} groups")
        if len(new) and not (new.min() >= 0 and new.max() < len(self._callbacks)):
            raise SimulationError("a group does not exist")
        self._lib.fs_set_group_many(self._sim, len(ids), address(ids), address(new))

    def rate(self, flow: int) -> float:
        """Return a flow's present rate in Mbit/s; 0 when it is finished or waiting."""
        return self._lib.fs_rate(self._sim, existing("flow", flow, self._n_flows))

    def set_remaining_many(self, flows: ArrayLike, sizes: ArrayLike) -> None:
        """Change the Mbit that unfinished flows have still to send; 0 ends a flow, and counts as done for its group."""
        ids, left = existing_many(flows, self._n_flows), reals_of(sizes)
        if len(ids) != len(left):
            raise SimulationError(f"{len(ids)} flows, but {len(left)} sizes")
        if not (np.isfinite(left).all() and (left >= 0).all()):
            raise SimulationError("sizes must be finite and >= 0")
        self._lib.fs_set_remaining_many(self._sim, len(ids), address(ids), address(left))

    def set_path(self, flow: int, path: Sequence[int]) -> None:
        """Move an unfinished flow to other resources (a multicast loses receivers, a route changes)."""
        ids = ids_of(path)
        if len(set(path)) != len(ids):
            raise SimulationError(f"a resource is named twice in {list(path)}")
        if len(ids) and not (ids.min() >= 0 and ids.max() < self._n):
            raise SimulationError(f"a resource of {ids.tolist()} does not exist, there are {self._n}")
        if self._lib.fs_set_path(self._sim, existing("flow", flow, self._n_flows), len(ids), address(ids)) < 0:
            raise MemoryError("no memory for flows")

    # --- running ---

    def stop(self) -> None:
        """End `run` after the present callback."""
        self._stopped = True

    def run(self, until: float = math.inf) -> float:
        """Run to `until`, or until nothing is left, and return the time then.

        Raise SimulationError where flows wait for bandwidth that nothing will ever give them (only without `until`).
        """
        self._stopped = False
        step, take = self._lib.fs_step, self._lib.fs_take_done
        callbacks = self._callbacks
        while not self._stopped:
            limit = min(self._timers[0][0], until) if self._timers else until
            count = step(self._sim, limit)
            if count < 0:
                raise MemoryError("no memory for flows")
            if count:
                done = np.empty(count, dtype=np.int32)
                take(self._sim, address(done))
                for group in done.tolist():
                    callback = callbacks[group]
                    if callback is not None:
                        callback(group)
            elif self._timers and self._timers[0][0] <= until:
                heapq.heappop(self._timers)[2]()
            else:
                if math.isinf(until) and self.active:
                    raise SimulationError(
                        f"{self.active} flows have no bandwidth (or wait for a group that will never be done) "
                        f"at {self.now:.6g} s, and nothing will give them any"
                    )
                break
        return self.now
