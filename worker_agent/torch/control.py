"""The agreements of ranks, over a gloo group of their own."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from worker_agent.torch.waiting import retire, wait_for


class Control:
    """A gloo group of all ranks that nothing else uses. All its methods but `end` are collective calls.

    Args:
        group: the group.
        seconds: the longest time that a call waits for the other ranks; None: the group's timeout.
    """

    def __init__(self, group: dist.ProcessGroup, seconds: float | None = None) -> None:
        self.group = group
        self.seconds = seconds
        self._works: dict[int, dist.Work] = {}
        self._error: Exception | None = None

    def wait(self, work: dist.Work, on_device: bool = False) -> None:
        """Wait for an operation of the group; `on_device`: in stream order. Raise the operation's error, or the one
        that `end` was called with.
        """
        if on_device:
            work.wait()
            return
        wait_for(self.keep(work), lambda: self._error, self.seconds)
        self.release(work)

    def keep(self, work: dist.Work) -> dist.Work:
        """Return an operation of the group, which keeps the group until the operation is released or has ended."""
        self._works[id(work)] = work
        return work

    def release(self, work: dist.Work) -> None:
        """Take note that an operation has ended."""
        self._works.pop(id(work), None)

    def exchange(self, text: str) -> list[str]:
        """Return the texts of all ranks, by rank."""
        data = torch.frombuffer(bytearray(text.encode() + b"\0"), dtype=torch.uint8)
        lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(self.group.size())]
        self.wait(self.group.allgather([lengths], [torch.tensor([len(data)])]))
        most = max(int(length) for length in lengths)
        padded = torch.zeros(most, dtype=torch.uint8)
        padded[: len(data)] = data
        parts = [torch.zeros(most, dtype=torch.uint8) for _ in lengths]
        self.wait(self.group.allgather([parts], [padded]))
        texts = [bytes(part.tolist())[: int(length)] for part, length in zip(parts, lengths, strict=True)]
        return [data.removesuffix(b"\0").decode() for data in texts]

    def reduce(self, numbers: list[int], op: Any) -> list[int]:
        """Return the minimum or maximum (op) of whole numbers over the ranks."""
        tensor = torch.tensor(numbers, dtype=torch.int64)
        self.wait(self.group.allreduce([tensor], op))
        return [int(number) for number in tensor]

    def agree(self, problem: str) -> str:
        """Return the problems of all ranks in words, empty when there are none."""
        return in_words(self.exchange(problem))

    def end(self, error: Exception) -> None:
        """End the waits of all threads with this error, now and later, and give the group up."""
        self._error = self._error or error
        retire(self.group, list(self._works.values()))


def in_words(problems: list[str]) -> str:
    """Return the ranks' problems as one text, in which the same problem occurs once."""
    found = {rank: text for rank, text in enumerate(problems) if text}
    # All ranks often have the same problem, such as a controller that does not run.
    causes = sorted(set(found.values()), key=list(found.values()).index)
    lines = []
    for cause in causes[:4]:
        ranks = [str(rank) for rank, text in found.items() if text == cause]
        which = "all ranks" if len(ranks) == len(problems) else f"rank {', '.join(ranks)}"
        lines.append(f"{which}: {cause}")
    return "; ".join(lines) + ("; ..." if len(causes) > 4 else "")
