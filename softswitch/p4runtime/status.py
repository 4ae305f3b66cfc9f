"""Errors as P4Runtime reports them: canonical codes, and one ``p4.v1.Error`` per element of a batch.

The P4Runtime specification describes this in "Error Reporting Messages".
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence
from typing import NoReturn

import grpc
from google.protobuf import any_pb2
from google.rpc import code_pb2, status_pb2

from softswitch import errors
from softswitch.p4runtime.stubs import p4runtime_pb2 as p4rt

# By default clients accept 8 KiB of metadata, with the names and other headers of the answer.
MAX_STATUS_BYTES = 7500
MAX_MESSAGE = 1000
DETAIL_OVERHEAD = 3  # bytes of tag and length of one detail
MAX_REST = 1000  # bytes of the detail that lists failures for which there is no room
_HEAD = 16  # bytes of a status around its message and details
_OVERHEAD = 40  # bytes of such a detail without its text
_FAILURES_ONLY = "; the details are of failures only, with their numbers"

_GRPC_CODES = {code.value[0]: code for code in grpc.StatusCode}

# The P4Runtime code of each exception of the data plane; the first class that fits decides.
_CODES: tuple[tuple[type[errors.SoftswitchError], int], ...] = (
    (errors.AlreadyExists, code_pb2.ALREADY_EXISTS),
    (errors.NotFound, code_pb2.NOT_FOUND),
    (errors.CapacityExceeded, code_pb2.RESOURCE_EXHAUSTED),
    (errors.CompilerFailed, code_pb2.FAILED_PRECONDITION),
    (errors.StillInUse, code_pb2.FAILED_PRECONDITION),
    (errors.SoftswitchError, code_pb2.INVALID_ARGUMENT),
)


class P4RuntimeError(Exception):
    """A request, or one element of it, is refused. ``code`` is a ``google.rpc.Code``, and ``message`` says why."""

    def __init__(self, code: int, message: str) -> None:
        self.code = code
        self.message = message
        super().__init__(message)


def invalid(message: str) -> P4RuntimeError:
    """Return the error for a request that is malformed, or does not fit the P4Info."""
    return P4RuntimeError(code_pb2.INVALID_ARGUMENT, message)


def unimplemented(message: str) -> P4RuntimeError:
    """Return the error for a valid P4Runtime request that softswitch does not implement."""
    return P4RuntimeError(code_pb2.UNIMPLEMENTED, message)


def denied(message: str) -> P4RuntimeError:
    """Return the error for a client that may not do this."""
    return P4RuntimeError(code_pb2.PERMISSION_DENIED, message)


def not_found(message: str) -> P4RuntimeError:
    """Return the error for an object that does not exist."""
    return P4RuntimeError(code_pb2.NOT_FOUND, message)


def out_of_range(message: str) -> P4RuntimeError:
    """Return the error for a value that is wider than its field, or an index beyond its array."""
    return P4RuntimeError(code_pb2.OUT_OF_RANGE, message)


def internal_error() -> P4RuntimeError:
    """Return the error for a defect of softswitch; its log has the details, which clients do not get."""
    return P4RuntimeError(code_pb2.INTERNAL, "an internal error of softswitch; its log has the details")


def from_data_plane(error: errors.SoftswitchError) -> P4RuntimeError:
    """Return a data-plane error with the code that the specification gives it."""
    code = next(code for kind, code in _CODES if isinstance(error, kind))
    text = f"not supported: {error}" if isinstance(error, errors.UnsupportedConstruct) else str(error)
    return P4RuntimeError(code, text)


class BatchError(Exception):
    """Some elements of a batch failed.

    ``outcomes`` has each reason, or ``None`` for OK; ``noun`` names an element ("update").
    """

    def __init__(self, outcomes: Sequence[P4RuntimeError | None], noun: str) -> None:
        self.outcomes = outcomes
        self.failures = _failures(outcomes)
        index, first = self.failures[0]
        reason = first.message if len(first.message) <= MAX_MESSAGE else first.message[: MAX_MESSAGE - 1] + "…"
        self.message = f"{noun} {index}: {reason}"
        if len(outcomes) > 1:
            self.message += f" ({len(self.failures)} of {len(outcomes)} failed)"
        super().__init__(self.message)


def _failures(outcomes: Sequence[P4RuntimeError | None]) -> list[tuple[int, P4RuntimeError]]:
    """Return the failed elements with their places: those that failed by themselves, then those that were not tried."""
    failed = [(index, outcome) for index, outcome in enumerate(outcomes) if outcome is not None]
    return sorted(failed, key=lambda failure: failure[1].code == code_pb2.ABORTED)


def abort(
    context: grpc.ServicerContext, error: P4RuntimeError | BatchError, max_status_bytes: int = MAX_STATUS_BYTES
) -> NoReturn:
    """End the RPC with an error of the whole request, or with one ``p4.v1.Error`` per element of its batch."""
    if isinstance(error, P4RuntimeError):
        context.abort(_GRPC_CODES[error.code], error.message)
    status = batch_status(error, max_status_bytes)
    context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
    context.abort(grpc.StatusCode.UNKNOWN, status.message)


def batch_status(error: BatchError, max_bytes: int = MAX_STATUS_BYTES) -> status_pb2.Status:
    """Return the status of a failed batch, in at most ``max_bytes`` as metadata of the answer.

    A client refuses a status above its limit and then learns nothing, not even the code. So a status that is too long
    is cut. First it loses messages of single elements, from the last. If one detail per element is still too long, the
    status has details of failures only, each with its number (``#57: reason``). A last detail lists the failures for
    which there is no room.
    """
    # The message is sent twice, and the status is sent as base64.
    budget = (max_bytes - 2 * len(error.message.encode())) * 3 // 4 - _HEAD
    details = [_detail(outcome, "") for outcome in error.outcomes]
    if _bytes(details) <= budget:
        texts = ["" if outcome is None else outcome.message for outcome in error.outcomes]
        _add_messages(details, list(zip(error.outcomes, texts, strict=True)), budget)
        return status_pb2.Status(code=code_pb2.UNKNOWN, message=error.message, details=details)
    message = error.message + _FAILURES_ONLY
    budget -= 2 * len(_FAILURES_ONLY)
    details = [_detail(outcome, f"#{index}") for index, outcome in error.failures]
    kept = len(details)
    if _bytes(details) > budget:
        budget -= MAX_REST
        kept = bisect.bisect_right(list(itertools.accumulate(map(_size, details))), budget)
        details = details[:kept]
    found = [(outcome, f"#{index}: {outcome.message}") for index, outcome in error.failures[:kept]]
    _add_messages(details, found, budget)
    if kept < len(error.failures):
        details.append(_detail(_rest(error.failures[kept:]), None))
    return status_pb2.Status(code=code_pb2.UNKNOWN, message=message, details=details)


def _add_messages(details: list[any_pb2.Any], found: Sequence[tuple[P4RuntimeError | None, str]], budget: int) -> None:
    """Replace details by ones with these texts, in order, as long as all fit into the budget in bytes."""
    budget -= _bytes(details)
    for place, (outcome, text) in enumerate(found):
        if outcome is not None:
            full = _detail(outcome, text)
            more = _size(full) - _size(details[place])
            if more <= budget:
                details[place] = full
                budget -= more


def _rest(failures: Sequence[tuple[int, P4RuntimeError]]) -> P4RuntimeError:
    """Return an error that lists failures by code, as ranges of their numbers."""
    numbers: dict[int, list[int]] = {}
    for index, failure in failures:
        numbers.setdefault(failure.code, []).append(index)
    text = "also failed: " + "; ".join(f"{_GRPC_CODES[code].name} {_ranges(found)}" for code, found in numbers.items())
    if len(text) > MAX_REST - _OVERHEAD:
        left = f" … ({len(failures)} in all)"
        text = text[: MAX_REST - _OVERHEAD - 2 * len(left)].rsplit(",", 1)[0] + left
    return P4RuntimeError(failures[0][1].code, text)


def _ranges(numbers: Sequence[int]) -> str:
    """Return increasing numbers as text: ``3-5, 9``."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(f"{first}-{last}" if first != last else f"{first}" for first, last in runs)


def _detail(outcome: P4RuntimeError | None, message: str | None) -> any_pb2.Any:
    """Return the detail of an element, with this message; None: the error's own."""
    error = p4rt.Error()
    if outcome is not None:
        error.canonical_code = outcome.code
        error.message = outcome.message if message is None else message
    # The prefix "type.googleapis.com" means nothing, and would take half of the bytes.
    return any_pb2.Any(type_url=f"/{error.DESCRIPTOR.full_name}", value=error.SerializeToString())


def _bytes(details: Sequence[any_pb2.Any]) -> int:
    return sum(map(_size, details))


def _size(detail: any_pb2.Any) -> int:
    return detail.ByteSize() + DETAIL_OVERHEAD
