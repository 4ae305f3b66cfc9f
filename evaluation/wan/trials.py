"""The function that runs at a site (see `topologies.zygote`): `overlay agent`, in a process that has its modules."""

from __future__ import annotations

import io
from contextlib import redirect_stdout
from typing import Any

from overlay.__main__ import main
from topologies.zygote import Channel

HERE = "evaluation.wan.trials"


def agent(_: Channel, *, words: list[str]) -> dict[str, Any]:
    """Return the exit status of `overlay agent` with these arguments, and the lines that it printed."""
    with redirect_stdout(io.StringIO()) as said:
        status = main(["agent", *words])
    return {"status": status, "lines": said.getvalue().splitlines()}
