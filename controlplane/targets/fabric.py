"""All switches at once: install everywhere or nowhere."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import TypeVar

from controlplane.planner.entries import RuleSet
from controlplane.targets.base import SwitchTarget, TargetError, difference, empty

Switch = TypeVar("Switch")
Result = TypeVar("Result")
Progress = Callable[[str], None]

RESTORE_ATTEMPTS = 3
AT_ONCE = 64
"""Switches that are worked on at a time."""


@dataclass(frozen=True)
class Installed:
    """What one switch went through: whether our program was loaded anew, and how many changes it took."""

    switch: str
    replaced_program: bool
    changes: int


class FabricError(TargetError):
    """The fabric could not be installed. Says which switch failed and whether the others are as they were."""


def connect(targets: Sequence[SwitchTarget], timeout: float, progress: Progress = lambda line: None) -> None:
    """Connect to all switches in parallel; all failures are reported together."""
    done = _on_all(targets, lambda target: target.connect(timeout))
    _raise_failures(done, "not connected")
    progress(f"connected to {len(targets)} switches")


def install(
    targets: Sequence[SwitchTarget], rulesets: Mapping[str, RuleSet], progress: Progress = lambda line: None
) -> list[Installed]:
    """Bring every switch to its rule set, by difference; a switch without one loses all entries.

    If a switch fails, all switches get back what they held before (a switch that ran another program stays with ours,
    empty: that program's entries are gone with it).

    Raises:
        FabricError: which switch failed at what, and whether restoring worked.
        KeyboardInterrupt: after Ctrl-C, with the same words where something may have been written.
    """
    unknown = set(rulesets) - {target.name for target in targets}
    if unknown:
        raise FabricError(
            f"the plan needs switches that are not in the switches file: {', '.join(sorted(unknown))}; "
            'add them as "NAME": {"address": "HOST:PORT", "device_id": N}'
        )
    if not targets:
        return []
    loaded = _on_all(targets, lambda target: target.load_pipeline())
    _raise_failures(loaded, "does not take the program")
    replaced = {name: bool(result) for name, result in loaded.items()}
    fresh = sum(replaced.values())
    if fresh:
        progress(f"program loaded on {fresh} switches, already there on {len(targets) - fresh}")

    befores = _on_all(targets, lambda target: target.read())
    _raise_failures(befores, "cannot be read")
    before: dict[str, RuleSet] = {name: rules for name, rules in befores.items() if isinstance(rules, RuleSet)}

    writing = {target.name: threading.Lock() for target in targets}
    interrupted = threading.Event()

    def bring(target: SwitchTarget) -> int:
        wanted = rulesets.get(target.name, empty(target.name))
        changes = difference(before[target.name], wanted)
        with writing[target.name]:
            if interrupted.is_set():
                return 0
            target.apply(changes)
        _verify(target, wanted)
        return len(changes)

    try:
        applied = _on_all(targets, bring)
    except KeyboardInterrupt:
        interrupted.set()
        progress("interrupted: putting back what the switches held (Ctrl-C again leaves them as they are)")
        for lock in writing.values():
            lock.acquire()
        raise KeyboardInterrupt(_restore(targets, before)) from None
    failures = {name: result for name, result in applied.items() if isinstance(result, TargetError)}
    if failures:
        progress(f"{', '.join(sorted(failures))} failed: restoring {len(targets)} switches")
        raise FabricError(_summary(failures) + "\n" + _restore(targets, before))
    return [Installed(target.name, replaced[target.name], _count(applied[target.name])) for target in targets]


def remove(targets: Sequence[SwitchTarget], progress: Progress = lambda line: None) -> list[Installed]:
    """Take every entry off the switches that run our program; others are left alone.

    Every switch is tried, also when some fail. Raises FabricError that names those.
    """

    def clear(target: SwitchTarget) -> int:
        if not target.runs_program():
            progress(
                f"switch {target.name} does not run this program: nothing is taken off it (where it runs another build "
                "of it, --artifacts says which)"
            )
            return 0
        changes = difference(target.read(), empty(target.name))
        target.apply(changes)
        _verify(target, empty(target.name))
        return len(changes)

    cleared = _on_all(targets, clear)
    _raise_failures(cleared, "not emptied")
    return [Installed(target.name, False, _count(cleared[target.name])) for target in targets]


def everywhere(
    switches: Sequence[Switch], work: Callable[[Switch], Result], at_once: int = AT_ONCE
) -> dict[Switch, Result]:
    """What `work` says of each, so many at once. Raises what it raises of any, when all are done; after Ctrl-C
    KeyboardInterrupt at once: a call that a silent switch does not answer keeps nobody waiting, and its thread ends
    with the process (a pool's threads would be joined)."""
    done: dict[Switch, Future[Result]] = {switch: Future() for switch in switches}
    waiting: queue.SimpleQueue[Switch] = queue.SimpleQueue()
    for switch in switches:
        waiting.put(switch)

    def run() -> None:
        while (switch := _next(waiting)) is not None:
            try:
                done[switch].set_result(work(switch))
            except BaseException as error:
                done[switch].set_exception(error)

    for number in range(min(at_once, len(switches))):
        threading.Thread(target=run, name=f"switch-{number}", daemon=True).start()
    try:
        wait(done.values())
    finally:
        while _next(waiting) is not None:  # interrupted: those that have not begun never do
            pass
    return {switch: future.result() for switch, future in done.items()}


def _next(waiting: queue.SimpleQueue[Switch]) -> Switch | None:
    try:
        return waiting.get_nowait()
    except queue.Empty:
        return None


def _count(result: int | TargetError) -> int:
    assert isinstance(result, int)
    return result


def _verify(target: SwitchTarget, wanted: RuleSet) -> None:
    left = difference(target.read(), wanted)
    if left:
        lines = "\n".join(f"  {change}" for change in left[:8])
        raise TargetError(
            f"switch {target.name} does not hold what was written to it (is another controller at work?); "
            f"{len(left)} differences:\n{lines}"
        )


def _restore(targets: Sequence[SwitchTarget], before: Mapping[str, RuleSet]) -> str:
    """Back to `before`, from whatever is there now: a failed batch may have been applied in part."""

    def restore(target: SwitchTarget) -> None:
        for attempt in range(RESTORE_ATTEMPTS):
            try:
                target.apply(difference(target.read(), before[target.name]))
                _verify(target, before[target.name])
                return
            except TargetError:
                if attempt == RESTORE_ATTEMPTS - 1:
                    raise

    failures = {
        name: result for name, result in _on_all(targets, restore).items() if isinstance(result, TargetError)
    }
    if not failures:
        return "all switches are as they were before"
    return (
        f"NOT RESTORED: {', '.join(sorted(failures))}; run the same command with --remove once it answers\n"
        + _summary(failures)
    )


def _on_all(
    targets: Sequence[SwitchTarget], work: Callable[[SwitchTarget], Result]
) -> dict[str, Result | TargetError]:
    """Run `work` on all switches in parallel; a TargetError becomes that switch's result."""

    def guarded(target: SwitchTarget) -> Result | TargetError:
        try:
            return work(target)
        except TargetError as error:
            return error

    return {target.name: result for target, result in everywhere(targets, guarded).items()}


def _raise_failures(results: Mapping[str, object], what: str) -> None:
    failures = {name: result for name, result in results.items() if isinstance(result, TargetError)}
    if failures:
        names = ", ".join(sorted(failures))
        raise FabricError(f"{len(failures)} of {len(results)} switches ({names}): {what}\n{_summary(failures)}")


def _summary(failures: Mapping[str, TargetError]) -> str:
    lines = [str(failures[name]) for name in sorted(failures)[:5]]
    if len(failures) > 5:
        lines.append(f"... and {len(failures) - 5} more switches")
    return "\n".join(lines)
