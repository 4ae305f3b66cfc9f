"""Decides the path of each step, through the network or over torch.distributed, and from which step on it changes."""

from __future__ import annotations

from worker_agent.torch.steps import Step


class Schedule:
    """The steps of one rank, numbered. It is not thread-safe: its user holds a lock.

    A change of path holds from a step on that no rank has begun. From `pause`, which says how many this rank has begun,
    to `resume` the ranks find that step, and new steps have no path yet.

    Attributes:
        in_question: number of the first step that had not begun when one failed; the earlier ones are settled one by
            one.
    """

    def __init__(self) -> None:
        self.in_question = 0
        self._now = False
        self._change: tuple[int, bool] | None = None  # the first step that uses the other path, and which path that is
        self._paused = False
        self._begun = 0
        self._oldest = 0
        self._latest: Step | None = None

    def use(self, network: bool) -> None:
        """Have all steps take this path; this is called before the first step."""
        self._now, self._change = network, None

    @property
    def in_network(self) -> bool:
        """Whether the last step went through the network, and the next one will."""
        last = self._latest is None or bool(self._latest.network)
        return last and self._path(self._begun)

    @property
    def changing(self) -> bool:
        """Whether steps are in progress that began before the last change of path."""
        return self._change is not None

    def begin(self, aside: bool) -> Step:
        """Begin the next step; `aside` says that it goes over torch.distributed in any case."""
        network = None if self._paused else self._path(self._begun) and not aside
        self._latest = Step(self._begun, network, aside)
        self._begun += 1
        return self._latest

    def end(self, step: Step) -> None:
        """Take note that the steps up to this one are done."""
        self._oldest = step.number + 1
        if self._change is not None and self._oldest >= self._change[0]:
            self._now, self._change = self._change[1], None

    def is_oldest(self, step: Step) -> bool:
        """Return whether no step before this one is in progress."""
        return step.number == self._oldest

    def pause(self) -> int:
        """Give no path to new steps, and return how many have begun."""
        self._paused = True
        return self._begun

    def resume(self, change: tuple[int, bool] | None = None) -> None:
        """Give paths to new steps again.

        `change` has the first step of another path, which no rank has begun, and whether that path is the network;
        None: the path stays.
        """
        self._paused = False
        if change is not None:
            self._change = change
            if not change[1]:
                self.in_question = change[0]

    def decide(self, step: Step) -> None:
        """Give a path to a step that began during the pause."""
        if step.network is None:
            step.network = self._path(step.number) and not step.aside

    def _path(self, number: int) -> bool:
        return self._change[1] if self._change is not None and number >= self._change[0] else self._now
