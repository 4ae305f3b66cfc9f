"""Installs rule sets on all switches at once: everywhere or nowhere."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from typing import Any, TypeVar

from controlplane.common.log_lines import SILENT, Log
from controlplane.planner.entries import RuleSet
from controlplane.targets.base import InstallError, SwitchTarget, TargetError, empty
from controlplane.targets.switch_entries import SwitchEntries

Switch = TypeVar("Switch")
Result = TypeVar("Result")
RESTORE_ATTEMPTS = 3
RESTORED = "all switches are as they were before"
AT_ONCE = 64
"""Most switches that are worked on in parallel."""


class FabricError(TargetError):
    """The fabric could not be installed; the message says which switch failed and whether the others were restored."""


def connect(targets: Sequence[SwitchTarget], timeout: float, log: Log = SILENT) -> None:
    """Connect to all switches in parallel. Raise FabricError, which has all failures together."""
    done = _on_all(targets, lambda target: target.connect(timeout))
    _raise_failures(done, "not connected")
    log.info(f"connected to {len(targets)} switches")


def install(targets: Sequence[SwitchTarget], rulesets: Mapping[str, RuleSet], log: Log = SILENT) -> dict[str, int]:
    """Bring every switch to its rule set, by difference; a switch without one loses all entries. Return the number of
    changes by switch.

    If a switch fails, all switches get back what they held before. A switch that ran another program keeps ours, empty,
    since that program's entries are lost.

    Raises:
        FabricError: says which switch failed at what, and whether restoring worked.
        KeyboardInterrupt: after Ctrl-C, with the same message if something may have been written.
    """
    unknown = set(rulesets) - {target.name for target in targets}
    if unknown:
        raise FabricError(
            f"the plan needs switches that are not in the switches file: {', '.join(sorted(unknown))}; "
            'add them as "NAME": {"address": "HOST:PORT", "device_id": N}'
        )
    return bring({SwitchEntries(target): rulesets.get(target.name, empty(target.name)) for target in targets}, log)


def bring(wanted: Mapping[SwitchEntries, RuleSet], log: Log = SILENT) -> dict[str, int]:
    """Bring every switch to its rule set, like `install`, without assuming what the switches hold. Raise the errors of
    `install`."""
    if not wanted:
        return {}
    loaded = _on_all(wanted, SwitchEntries.read)
    _raise_failures(loaded, "cannot be read, or does not take the program")
    fresh = sum(bool(result) for result in loaded.values())
    if fresh:
        log.info(f"program loaded on {fresh} switches, already there on {len(wanted) - fresh}")
    before = {one: one.holds for one in wanted}
    interrupted = threading.Event()

    def write(one: SwitchEntries) -> int:
        with one.lock:
            return 0 if interrupted.is_set() else one.write(wanted[one])

    try:
        applied = _on_all(wanted, write)
    except KeyboardInterrupt:
        interrupted.set()
        log.info("interrupted: putting back what the switches held (Ctrl-C again leaves them as they are)")
        for one in wanted:
            with one.lock:
                pass
        raise KeyboardInterrupt(_restored(before)) from None
    failures = {one: result for one, result in applied.items() if isinstance(result, TargetError)}
    if failures:
        log.warning(f"{', '.join(sorted(one.name for one in failures))} failed: restoring {len(wanted)} switches")
        raise FabricError(_summary(failures) + "\n" + _restored(before))
    return {one.name: _count(result) for one, result in applied.items()}


def bring_those_that_answer(
    switches: Sequence[SwitchEntries],
    write: Callable[[SwitchEntries], int],
    undo: Callable[[], object],
    ended: Callable[[SwitchEntries], object],
    patience: float | None = None,
) -> dict[str, int]:
    """Call `write` on each of these switches, with its lock held, and `ended` afterwards. Return the number of changes
    by switch.

    A switch that does not answer is left out, as is one whose write takes longer than `patience` seconds (None: no
    limit): the thread that watches it fills it later. If a switch refuses a change, `undo` is called, and `write` once
    more on all of them. Raise FabricError then.
    """

    def written(one: SwitchEntries) -> int:
        if not one.target.alive:
            return 0
        try:
            with one.lock:
                return write(one)
        except TargetError as error:
            if isinstance(error, InstallError) and one.target.alive:
                raise
            return 0
        finally:
            ended(one)

    done = _on_all(switches, written, patience)
    failures = {one: result for one, result in done.items() if isinstance(result, TargetError)}
    if not failures:
        return {one.name: _count(result) for one, result in done.items()}
    undo()
    again = _on_all(list(done), written, patience)
    left = [one.name for one in done if isinstance(again.get(one, failures.get(one)), TargetError)]
    end = f"NOT RESTORED, and tried again: {', '.join(left)}" if left else RESTORED
    raise FabricError("\n".join(map(str, failures.values())) + f"\n{end}")


def remove(targets: Sequence[SwitchTarget], log: Log = SILENT) -> dict[str, int]:
    """Remove every entry from the switches that run our program, and leave the others alone. Return the number of
    changes by switch.

    Every switch is tried, also when some fail. Raise FabricError, which names those.
    """

    def clear(one: SwitchEntries) -> int:
        if not one.target.runs_program():
            log.info(
                f"switch {one.name} does not run this program: nothing is taken off it (where it runs another build "
                "of it, `artifacts` of --config says which)"
            )
            return 0
        return one.write(empty(one.name))

    cleared = _on_all([SwitchEntries(target) for target in targets], clear)
    _raise_failures(cleared, "not emptied")
    return {one.name: _count(result) for one, result in cleared.items()}


def everywhere(
    switches: Sequence[Switch],
    work: Callable[[Switch], Result],
    at_once: int = AT_ONCE,
    patience: float | None = None,
) -> dict[Switch, Result]:
    """Call `work` on each switch, at most `at_once` in parallel, and return the results. Those that take longer than
    `patience` seconds (None: no limit) are missing; their calls go on.

    An exception of any call is raised when all are done. After Ctrl-C, KeyboardInterrupt is raised at once: nothing
    waits for a silent switch, whose thread ends with the process (a pool's threads would be joined).
    """
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
        wait(done.values(), patience)
    finally:
        while _next(waiting) is not None:  # After an interrupt, calls that have not begun never do.
            pass
    return {switch: future.result() for switch, future in done.items() if patience is None or future.done()}


def _next(waiting: queue.SimpleQueue[Switch]) -> Switch | None:
    try:
        return waiting.get_nowait()
    except queue.Empty:
        return None


def _count(result: int | TargetError) -> int:
    assert isinstance(result, int)
    return result


def _restored(before: Mapping[SwitchEntries, RuleSet | None]) -> str:
    """Restore `before` from whatever is installed now, since a failed batch may have been applied in part. Return in
    words whether that worked."""

    def restore(one: SwitchEntries) -> None:
        rules = before[one]
        assert rules is not None
        for attempt in range(RESTORE_ATTEMPTS):
            one.holds = None
            try:
                one.write(rules)
                return
            except TargetError:
                if attempt == RESTORE_ATTEMPTS - 1:
                    raise

    failures = {one: result for one, result in _on_all(before, restore).items() if isinstance(result, TargetError)}
    if not failures:
        return RESTORED
    names = ", ".join(sorted(one.name for one in failures))
    return f"NOT RESTORED: {names}; inart deploy remove takes the entries off once it answers\n{_summary(failures)}"


def _on_all(
    switches: Iterable[Switch], work: Callable[[Switch], Result], patience: float | None = None
) -> dict[Switch, Result | TargetError]:
    """Run `work` on all switches in parallel, as `everywhere` does; a TargetError becomes that switch's result."""

    def guarded(switch: Switch) -> Result | TargetError:
        try:
            return work(switch)
        except TargetError as error:
            return error

    return everywhere(list(switches), guarded, patience=patience)


def _raise_failures(results: Mapping[Any, object], what: str) -> None:
    failures = {switch: result for switch, result in results.items() if isinstance(result, TargetError)}
    if failures:
        names = ", ".join(sorted(switch.name for switch in failures))
        raise FabricError(f"{len(failures)} of {len(results)} switches ({names}): {what}\n{_summary(failures)}")


def _summary(failures: Mapping[Any, TargetError]) -> str:
    lines = [str(failures[switch]) for switch in sorted(failures, key=lambda switch: str(switch.name))[:5]]
    if len(failures) > 5:
        lines.append(f"... and {len(failures) - 5} more switches")
    return "\n".join(lines)
