"""Describes a model and the settings of its optimiser, as a text that sites compare before they train together."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from overlay.sites.fragments import Shared, Tensors, digest_of_tensor

REMEDY = "the sites have to train the same model with the same settings"
LOCAL = "buffer that is not in the model's state"
LONGEST = 200
"""Maximum number of characters of a value in an error."""


def describe(tensors: Tensors, fragments: Sequence[Sequence[Shared]], settings: Mapping[str, Any]) -> str:
    """Return the description of a model and of the settings of its optimiser, a line of JSON."""
    averaged = {
        each.name: ["parameter" if each.trained else "buffer", list(each.tensor.shape), f"in fragment {number}"]
        for number, fragment in enumerate(fragments)
        for each in fragment
    }
    fixed = {name: ["tensor", list(each.shape), f"of {each.dtype}"] for name, each in tensors.fixed}
    local = {name: [LOCAL, list(each.shape), digest_of_tensor(each)] for name, each in tensors.local}
    return json.dumps({"settings": dict(settings), "tensors": averaged | fixed | local})


def difference(site: str, theirs: str, ours: str) -> str:
    """Return a sentence that names the first difference between the description of another site and this site's."""
    try:
        there, here = json.loads(theirs), json.loads(ours)
        for name in (*here["settings"], *there["settings"]):
            one, other = there["settings"].get(name), here["settings"].get(name)
            if one != other:
                words = f"{name}={_short(one)} there, {name}={_short(other)} here"
                return f"{site} trains with other settings: {words}; {REMEDY}"
        for name in (*here["tensors"], *there["tensors"]):
            one, other = there["tensors"].get(name), here["tensors"].get(name)
            if one == other:
                continue
            if one is None or other is None:
                return f"{site} trains another model: only {'this site' if one is None else site} has {name}; {REMEDY}"
            if one[0] == other[0] == LOCAL and one[1] == other[1]:
                return (
                    f"{site} has other values of the buffer {name}, which is not in the model's state and is not sent: "
                    "give it the same values at all sites, or make it persistent"
                )
            each = [f"a {_short(kind)} of shape {_short(shape)}, {_short(more)}" for kind, shape, more in (one, other)]
            return f"{site} trains another model: {_short(name)} is {each[0]} there, and {each[1]} here; {REMEDY}"
    except (ValueError, KeyError, TypeError, IndexError, AttributeError):
        pass  # the other site has another version of this program
    return f"{site} trains another model, or with other settings; {REMEDY}"


def _short(value: object) -> str:
    return str(value)[:LONGEST]
