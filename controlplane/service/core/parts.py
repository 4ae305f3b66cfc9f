"""Switches and links that no plan uses: what disables them, and what enables them again.

    used --something is seen--> disabled, for a reason `Why` --time, an order, or a job without a way--> used

docs/controller.md has the table. The consequences for jobs (reroute at once, replan soon) are actions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from controlplane.service.core import ports, trust
from controlplane.service.core.actions import Say
from controlplane.service.core.disabled import Why
from controlplane.service.core.ports import Ports, States
from controlplane.service.core.trust import Trust
from controlplane.service.core.ways import Layout, Need, avoidable, only_ways

# -- actions ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RerouteJobs:
    """Reroute every job around what is disabled. Where `silent` is not empty, answer with `rerouted`."""

    silent: tuple[str, ...] = ()
    again: bool = False


@dataclass(frozen=True)
class CountLost:
    """Add this number to the count of lost switches and links."""

    number: int


@dataclass(frozen=True)
class PlanSoon:
    """Replan all jobs, as soon as what is under way allows it."""


Action = Say | RerouteJobs | CountLost | PlanSoon

# -- what is decided --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Parts:
    """The state of a network's switches and links."""

    layout: Layout
    off: Mapping[str, Why] = field(default_factory=dict)
    trust: Trust = field(default_factory=Trust)
    ports: Ports = field(default_factory=Ports)


Decided = tuple[Parts, list[Action]]
"""The state after an event, and the actions in the order in which to carry them out. Each event is a function; `now` is
in seconds, of a clock that never goes back."""


def found_silent(state: Parts, now: float, found: Iterable[str]) -> Decided:
    """Disable links and switches into which packets went, and out of which none came."""
    names = tuple(name for name in found if state.layout.has(name))
    state = replace(state, trust=trust.found_silent(state.trust, names, now))
    return _lose(state, {name: _silence(name, state.layout) for name in names}, Why.SILENT, silent=names)


def failed(state: Parts, now: float, causes: Mapping[str, str], why: Why) -> Decided:
    """Disable switches or links that have failed, for this reason. `causes` says by name what was seen."""
    return _lose(state, causes, why)


def mended(state: Parts, now: float, names: Iterable[str], words: str) -> Decided:
    """Use these switches and links again, for the reason in `words`."""
    return _restore(state, names, words)


def ordered(state: Parts, now: float, off: Iterable[str], restored: Collection[str]) -> Decided:
    """Disable and enable what an operator says."""
    kept = {name: why for name, why in state.off.items() if name not in restored}
    return replace(state, off={**kept, **dict.fromkeys(off, Why.OPERATOR)}), []


def rerouted(
    state: Parts, now: float, silent: tuple[str, ...], every: bool, needs: Iterable[Need], *, again: bool = False
) -> Decided:
    """Take note that jobs were rerouted around what was found silent, and whether `every` job has a way now. With
    `again`, the reroute already used what a job has no other way than."""
    done: list[Action] = []
    if not every and not again:
        state, done = _take_only_ways(state, needs, now, silent)
    if not done:
        state = replace(state, trust=trust.set_probation(state.trust, silent, every))
    return state, done


def relaid(state: Parts, now: float, layout: Layout) -> Decided:
    """Take another layout of the network. Parts that it no longer contains are not disabled any more, and nothing is
    known of them, so that they begin anew if they return. What was known of a port is kept where the same neighbour is
    still there."""
    seen, before = state.ports, state.layout.ports
    same = {
        (switch, port)
        for switch, ports_of in layout.ports.items()
        for port, other in ports_of.items()
        if before.get(switch, {}).get(port) == other
    }
    known = Ports(
        {key: up for key, up in seen.up.items() if key in same},
        {switch: began for switch, began in seen.began.items() if switch in layout.switches},
        frozenset(key for key in seen.late if key in same),
        {link: since for link, since in seen.steady.items() if layout.has(link)},
        {link: losses for link, losses in seen.losses.items() if layout.has(link)},
    )
    there = {name: one for name, one in state.trust.probation.items() if layout.has(name)}
    off = {name: why for name, why in state.off.items() if layout.has(name)}
    return Parts(layout, off, replace(state.trust, probation=there), known), []


def _silence(name: str, layout: Layout) -> str:
    if name in layout.switches:
        return f"nothing that is sent to switch {name} comes in"
    return f"nothing comes out of link {name}"


def _lose(state: Parts, causes: Mapping[str, str], why: Why, silent: tuple[str, ...] = ()) -> Decided:
    """Disable these switches and links. What is disabled already stays so for its first reason."""
    state = replace(state, off={**dict.fromkeys(causes, why), **state.off})
    lines = [Say(f"lost: {cause}", warning=True) for cause in causes.values()]
    return state, [CountLost(len(causes)), *lines, RerouteJobs(silent), PlanSoon()]


def _restore(state: Parts, names: Iterable[str], words: str, silent: tuple[str, ...] = ()) -> Decided:
    """Use these switches and links again. All jobs are rerouted, since a job that found no way around something else
    may have one now."""
    gone = tuple(names)
    state = replace(state, off={name: why for name, why in state.off.items() if name not in gone})
    line = Say(f"{', '.join(gone)} can be used again: {words}")
    return state, [line, RerouteJobs(silent, again=bool(silent)), PlanSoon()]


def switches_seen(
    state: Parts,
    now: float,
    ready: Mapping[str, bool],
    timed_out: Collection[str] = (),
    prompt: Mapping[str, float] = MappingProxyType({}),
) -> Decided:
    """Take note which switches answer, of all that there are.

    Args:
        timed_out: switches that do not answer, and of which nothing else is known.
        prompt: by switch, when it was last sent a question that it answered at once, by the clock of `now`.
    """
    known = {name: up for name, up in ready.items() if name in state.layout.switches}
    seen, lost, steady = trust.look_at_switches(state.trust, known, state.off, now, timed_out=timed_out, prompt=prompt)
    state, done = replace(state, trust=seen), list[Action]()
    if lost:
        state, done = _lose(state, {name: f"switch {name} does not answer" for name in lost}, Why.LOST)
    if steady:
        state, more = _restore(state, steady, f"answering for {trust.STEADY_SECONDS:g} s")
        done += more
    return state, done


def ports_seen(state: Parts, now: float, states: States) -> Decided:
    """Take note which of their ports are up, as some switches have said."""
    states = {name: up for name, up in states.items() if name in state.layout.switches}
    seen, causes, lines = ports.look_at_ports(state.ports, states, state.layout, state.off, now)
    state, done = replace(state, ports=seen), list[Action](Say(line) for line in lines)
    if causes:
        state, more = _lose(state, causes, Why.PORT_DOWN)
        done += more
    seen, back = ports.look_at_what_is_back(state.ports, state.layout, state.off, now)
    state = replace(state, ports=seen)
    for link, seconds in back.items():
        state, more = _restore(state, [link], f"its ports have been up for {seconds:g} s")
        done += more
    return state, done


def looked(state: Parts, now: float, needs: Iterable[Need]) -> Decided:
    """Try again what has been disabled for long enough. What one of the jobs (`needs`) has no other way than is tried
    at once."""
    seen, over = trust.end_probation(state.trust, state.off, now)
    state, done = replace(state, trust=seen), list[Action]()
    if over:
        state, done = _restore(state, over, f"tried again after {max(over.values()):g} s")
    state, more = _take_only_ways(state, needs, now)
    return state, [*done, *more]


def _take_only_ways(state: Parts, needs: Iterable[Need], now: float, silent: tuple[str, ...] = ()) -> Decided:
    """Use at once what is on probation where servers of a job do not reach each other without it: the job does not run,
    so trying costs nothing."""
    layout, off = state.layout, state.off
    up = [name for name, why in off.items() if why == Why.PORT_DOWN and state.ports.is_up(name, layout)]
    probation = state.trust.may_carry(off, up, now)
    if not probation:
        return state, []
    names = only_ways(layout, [(need.nodes, avoidable(off, layout, need.servers)) for need in needs], probation)
    if not names:
        return state, []
    tried = trust.tried_early(state.trust, [name for name in names if off.get(name) == Why.SILENT])
    return _restore(replace(state, trust=tried), names, "a job has no other way", silent)
