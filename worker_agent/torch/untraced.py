"""Methods that torch.compile calls as they are, as it calls the methods of groups that are in C++."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import torch

Method = TypeVar("Method", bound=Callable[..., Any])


def untraced(method: Method) -> Method:
    """Return the method so that torch.compile does not trace into it.

    `torch.compiler.disable` imports the compiler, which takes more than two seconds. Therefore it is called only once
    the process has imported the compiler.
    """
    disabled: list[Callable[..., Any]] = []

    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        if "torch._dynamo" not in sys.modules:
            return method(*args, **kwargs)
        if not disabled:
            disabled.append(torch.compiler.disable(method))
        return disabled[0](*args, **kwargs)

    return call  # type: ignore[return-value]
