"""torchft's own tests of process groups, with ours in the place of its group over gloo. For `tests.outside.torchft`.

Its test class `NormalGlooMultiPgTest` has three ranks as threads of one process; each has the agent of its own node
($INART_TORCHFT_AGENTS). It is run as it is, but for the groups that it makes and their timeout: gloo's is one second.
"""

from __future__ import annotations

import json
import os
import sys
import time
import unittest
from datetime import timedelta
from typing import Any

from torchft import process_group_test as theirs

from worker_agent.torch.backend import BackendOptions
from worker_agent.torch.torchft import ProcessGroupInArt

AGENTS = "INART_TORCHFT_AGENTS"


class _OfThread(ProcessGroupInArt):
    """The group of a rank that is a thread, with the agent of its node."""

    def options_of(self, rank: int) -> BackendOptions:
        return BackendOptions(agent=os.environ[AGENTS].split()[rank], group_timeout=self._timeout)


class InArtMultiPgTest(theirs.NormalGlooMultiPgTest):
    """torchft's class over our group."""

    @classmethod
    def _create_pg(cls, backend: str) -> Any:
        return _OfThread(timeout=timedelta(seconds=30)) if AGENTS in os.environ else super()._create_pg(backend)


class _Result(unittest.TestResult):
    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        self.began = time.monotonic()

    def _note(self, test: unittest.TestCase, outcome: str, reason: str = "") -> None:
        name = test.id().rpartition(".")[2]
        seconds = round(time.monotonic() - getattr(self, "began", time.monotonic()), 1)
        print(json.dumps({"name": name, "outcome": outcome, "reason": reason, "seconds": seconds}), flush=True)

    def addSuccess(self, test: unittest.TestCase) -> None:
        self._note(test, "passed")

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        self._note(test, "skipped", reason)

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:
        self._note(test, "different", f"{type(err[1]).__name__}: {err[1]}"[:2000])

    addError = addFailure


def main() -> None:
    """Run the tests whose names contain one of the arguments (none: all); prints a line of JSON for each."""
    words = sys.argv[1:] or [""]
    loaded = unittest.defaultTestLoader.loadTestsFromTestCase(InArtMultiPgTest)
    chosen = unittest.TestSuite(test for test in loaded if any(word in test.id() for word in words))  # type: ignore[union-attr]
    chosen.run(_Result())
    os._exit(0)  # torchft's threads of timeouts do not end.


if __name__ == "__main__":
    main()
