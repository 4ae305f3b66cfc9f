"""Names callers as the authors of their orders, and records the orders in the journal, also refused ones."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import grpc
from google.protobuf.message import Message

from controlplane.common.access import Access
from controlplane.service.core.journal import orders_of
from controlplane.service.journal import Journal

MAX_FIELD = 200
"""Maximum number of characters of each field of an order in the journal, since the plan or topology of one is long."""


@dataclass
class Order:
    """An operator's order. `job` is the name of the job that it is about, as soon as it is known; "" where it is about
    none."""

    job: str


@contextmanager
def ordered(
    journal: Journal, access: Access, what: str, request: Message, context: grpc.ServicerContext
) -> Iterator[Order]:
    """Record the order of this caller, and name it as the author of all that the `with` block does."""
    caller = access.caller(context)
    given = {name.name: value for name, value in request.ListFields()}
    words = f"{what} {' '.join(f'{name}={_plain(value)}' for name, value in given.items())}"
    began = time.monotonic()
    order = Order("" if what == "job add" else given.get("job" if what == "replan" else "name", ""))
    with orders_of(str(caller) if caller is not None else f"an operator at {context.peer()}"):
        try:
            yield order
        except Exception as error:
            took = {"seconds": round(time.monotonic() - began, 3)}
            journal.add("order", f"{words}: refused: {error}", job=order.job, data=took, level="warning")
            raise
        journal.add("order", words, job=order.job, data={"seconds": round(time.monotonic() - began, 3)})


def _plain(value: object) -> str:
    """Return a field of a request in words."""
    text = str(value)
    if not isinstance(value, str) and isinstance(value, Sequence):  # the machines of a job are messages, with names
        text = ",".join(one if isinstance(one, str) else one.name for one in value)
    return text if len(text) <= MAX_FIELD else f"{text[:MAX_FIELD]}..."
