"""Processes that do one thing at the same time, and tell when each was done. Each is a rank of ours or of gloo.

    driver -> rank   a line: what to do (JSON)          rank -> driver   READY
    driver -> rank   a line: when to begin              rank -> driver   [when what is measured began, when it was
                                                                          done, digest of the result, CPU seconds and
                                                                          context switches of all that was done]

Times are CLOCK_MONOTONIC, which all processes of a machine share. So the measured operations begin at one moment on all
ranks (after operations that are not measured, when the first of the ranks is done with these), and end with the last of
them, for ours and for gloo alike.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from controlplane.common.agentconfig import AgentConfig
from evaluation.hosts.network import StarNetwork

LEAD_SECONDS = 0.002
"""Seconds between the message that says when to begin and the beginning, within which all ranks have read it."""
_PR_SET_TIMERSLACK = 29
QUIET = {"TORCH_CPP_LOG_LEVEL": "ERROR"}  # gloo warns that the hosts have no names


def serve(prepare: Callable[[dict[str, Any]], tuple[Callable[[], float], Callable[[], int]]]) -> None:
    """Serve as a rank until the input ends.

    Args:
        prepare: called with what is to be done; returns the call that is measured, which returns when it began, and
            a call that returns its result's digest.
    """
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1000)  # ns, so that the sleep below ends in time
    for line in sys.stdin:
        run, digest = prepare(json.loads(line))
        print("READY", flush=True)
        begin = float(sys.stdin.readline())
        time.sleep(max(0.0, begin - time.monotonic()))
        before = _used()
        began, ended = run(), time.monotonic()
        used = [after - one for after, one in zip(_used(), before, strict=True)]
        print(json.dumps([began, ended, digest(), *used]), flush=True)


def _used() -> tuple[float, int]:
    """Return the CPU seconds and the context switches of this process so far."""
    found = resource.getrusage(resource.RUSAGE_SELF)
    return found.ru_utime + found.ru_stime, found.ru_nvcsw + found.ru_nivcsw


def in_order(begin: Sequence[Callable[[], Any]], beside: Sequence[Sequence[int]], warm: int = 0) -> Callable[[], float]:
    """Return a call that begins operations one after the other, waits for all of them, and returns when the first
    measured one began.

    Args:
        begin: calls that begin an operation and return an object with a method `wait`.
        beside: for each measured operation, the places of those before it that need not have ended when it begins;
            empty where each waits for all before it.
        warm: number of operations at the beginning that are not measured.
    """

    def run() -> float:
        for one in begin[:warm]:
            one().wait()
        began = time.monotonic()
        open_works: dict[int, Any] = {}
        for place, one in enumerate(begin[warm:]):
            for other in [before for before in open_works if not beside or before not in beside[place]]:
                open_works.pop(other).wait()
            open_works[place] = one()
        for work in open_works.values():
            work.wait()
        return began

    return run


def command(network: StarNetwork, node: str, module: str, *words: str) -> list[str]:
    """Return a command that runs a module of this package in a host's network namespace."""
    enter = ["ip", "netns", "exec", network.hosts[node]]
    return [*enter, sys.executable, "-m", f"evaluation.collectives.{module}", *words]


def gloo_ranks(network: StarNetwork, workers: Sequence[AgentConfig]) -> Ranks:
    """Start a rank of gloo in each worker's host of a network whose middle is a bridge."""
    world, first = str(len(workers)), workers[0].address
    return Ranks("gloo", [command(network, one.node, "gloo", str(one.index), world, first) for one in workers])


class Ranks:
    """Processes, one for each command, that do tasks together.

    Args:
        what: name of the processes in messages.
        commands: the commands.

    Attributes:
        used: the CPU seconds and the context switches of all processes in the last tasks.
    """

    def __init__(self, what: str, commands: Sequence[Sequence[str]]) -> None:
        self._what = what
        self.used = 0.0, 0
        self._processes: list[subprocess.Popen[str]] = []
        try:
            for words in commands:
                self._processes.append(
                    subprocess.Popen(
                        words,
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                        text=True,
                        env=os.environ | QUIET,
                        bufsize=1,
                    )
                )
        except BaseException:
            self.close()
            raise

    def seconds(self, *tasks: dict[str, Any], same: bool) -> float:
        """Return the seconds from the first rank's beginning to the last rank's end. Raise RuntimeError when a rank has
        ended.

        Args:
            tasks: each rank's task, or one task for all.
            same: the ranks' results must be the same; raise AssertionError when they are not.
        """
        try:
            for number, rank in enumerate(self._processes):
                self._tell(rank, json.dumps(tasks[number % len(tasks)]))
            for rank in self._processes:
                if self._hear(rank) != "READY":
                    raise ValueError
            begin = time.monotonic() + LEAD_SECONDS
            for rank in self._processes:
                self._tell(rank, repr(begin))
            ends = [json.loads(self._hear(rank)) for rank in self._processes]
        except (BrokenPipeError, ValueError):
            raise RuntimeError(f"{self._what} failed; its own message is above") from None
        begins, finishes, digests, cpu, switches = zip(*ends, strict=True)
        if same and len(set(digests)) != 1:
            raise AssertionError(f"the results of {self._what} differ among the ranks: {tasks[0]}")
        self.used = float(sum(cpu)), int(sum(switches))
        return float(max(finishes)) - float(min(begins))

    @staticmethod
    def _tell(rank: subprocess.Popen[str], line: str) -> None:
        assert rank.stdin is not None
        rank.stdin.write(line + "\n")
        rank.stdin.flush()

    @staticmethod
    def _hear(rank: subprocess.Popen[str]) -> str:
        assert rank.stdout is not None
        return rank.stdout.readline().strip()

    def close(self) -> None:
        """End the processes."""
        for rank in self._processes:
            rank.kill()
        for rank in self._processes:
            rank.wait(60)
            for pipe in (rank.stdin, rank.stdout):
                if pipe is not None:
                    pipe.close()
