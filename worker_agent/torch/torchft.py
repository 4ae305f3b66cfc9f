"""A process group for torchft's Manager whose operations go through the network's switches.

    from torchft import Manager
    from worker_agent.torch.torchft import ProcessGroupInArt

    manager = Manager(pg=ProcessGroupInArt(BackendOptions(controller="10.1.0.1:9600")), ...)

A group of as many replicas as the job has workers goes through the network; with fewer, because some are lost, it goes
over gloo, until the Manager makes it anew with all of them. A replica that is gone ends the operations of the others
within seconds, and so does `abort`.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torchft.process_group import ProcessGroupWrapper

from worker_agent.torch.backend import NAME, BackendOptions, InArtProcessGroup


class ProcessGroupInArt(ProcessGroupWrapper):
    """A reconfigurable process group over the network.

    Args:
        options: the backend's options; `group_timeout` is not used.
        timeout: timeout of reconfiguring, and of each operation, after which the group is aborted.
    """

    def __init__(self, options: BackendOptions | None = None, timeout: timedelta = timedelta(seconds=60)) -> None:
        super().__init__(timeout)
        self._options = options or BackendOptions()
        self._error: Exception | None = None

    def _create_pg(self, store: Any, rank: int, world_size: int) -> dist.ProcessGroup:
        self._error = None
        given = SimpleNamespace(
            store=store, group_rank=rank, group_size=world_size, group_id="torchft", timeout=self._timeout
        )
        return InArtProcessGroup(given, self.options_of(rank))

    def options_of(self, rank: int) -> BackendOptions:
        """Return the options of a group in which this process has the rank `rank`."""
        return replace(self._options, group_timeout=self._timeout)

    def _wrap_work(self, work: Any, opts: object) -> dist.Work:
        return _Timed(work, self, self._timeout)

    def abort(self, errored: bool = True) -> None:
        """End operations in progress with an error; the group has to be configured anew. `errored` says that an error
        is the reason.
        """
        if errored:
            self._error = RuntimeError("the process group was aborted")
        super().abort(errored)

    def shutdown(self) -> None:
        """Leave the group. Operations in progress end with an error, on all ranks."""
        super().abort(errored=False)

    def errored(self) -> Exception | None:
        """Return the error after which the group has to be configured anew, or None."""
        return self._error

    def getBackendName(self) -> str:
        """Return the backend's name as torchft's own groups do."""
        return f"torchft-{NAME}"


class _Timed(dist.Work):
    """An operation that aborts its group when it is waited for longer than the group's timeout."""

    def __init__(self, work: Any, group: ProcessGroupInArt, timeout: timedelta) -> None:
        super().__init__()
        self._work, self._group, self._timeout = work, group, timeout

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for the result. Raise the operation's error, or one that says that it took too long."""
        try:
            return bool(self._work.wait(timeout or self._timeout))
        except Exception as error:
            self._group.abort()
            if "Operation timed out" in str(error):  # as gloo says it
                raise TimeoutError(f"timed out after {(timeout or self._timeout).total_seconds():g} s") from error
            raise

    def get_future(self) -> torch.futures.Future[Any]:
        """Return the Future of the result."""
        return self._work.get_future()

    def is_completed(self) -> bool:
        return self._work.is_completed()

    def is_success(self) -> bool:
        return self._work.is_success()

    def exception(self) -> Any:
        return self._work.exception()

    def synchronize(self) -> None:
        self.wait()
