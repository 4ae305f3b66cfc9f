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
_LEFT_OUT = "; details are of the first {} only, since clients refuse longer statuses"

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

    def to_proto(self) -> p4rt.Error:
        return p4rt.Error(canonical_code=self.code, message=self.message)


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

    ``outcomes`` has each reason, or ``None`` for OK; ``noun`` names the elements.
    """

    def __init__(self, outcomes: Sequence[P4RuntimeError | None], noun: str) -> None:
        self.outcomes = outcomes
        failed = [(index, outcome) for index, outcome in enumerate(outcomes) if outcome is not None]
        index, first = failed[0]
        self.message = f"{len(failed)} of {len(outcomes)} {noun} failed; the first is number {index}: {first.message}"
        super().__init__(self.message)


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
    """Return the status of a failed batch, in at most `max_bytes` as metadata of the answer.

    A client refuses a status above its limit and then learns nothing, not even the code. So a status that is too long
    is cut, in this order: messages of single updates, from the last; then the details of the last updates, as the
    status says.
    """
    message = error.message if len(error.message) <= MAX_MESSAGE else error.message[: MAX_MESSAGE - 1] + "…"
    budget = (max_bytes - 2 * len(message.encode())) * 3 // 4  # The message is sent twice, and details as base64.
    details = [_detail(outcome, False) for outcome in error.outcomes]
    sizes = [detail.ByteSize() + DETAIL_OVERHEAD for detail in details]
    if sum(sizes) > budget:
        budget -= 2 * len(_LEFT_OUT)
        kept = bisect.bisect_right(list(itertools.accumulate(sizes)), budget)
        message += _LEFT_OUT.format(kept)
        details, sizes = details[:kept], sizes[:kept]
    budget -= sum(sizes)
    for index, outcome in enumerate(error.outcomes[: len(details)]):
        if outcome is not None:
            full = _detail(outcome, True)
            more = full.ByteSize() - details[index].ByteSize()
            if more <= budget:
                details[index] = full
                budget -= more
    return status_pb2.Status(code=code_pb2.UNKNOWN, message=message, details=details)


def _detail(outcome: P4RuntimeError | None, with_message: bool) -> any_pb2.Any:
    detail = any_pb2.Any()
    if outcome is None:
        detail.Pack(p4rt.Error(canonical_code=code_pb2.OK))
    else:
        detail.Pack(outcome.to_proto() if with_message else p4rt.Error(canonical_code=outcome.code))
    return detail
