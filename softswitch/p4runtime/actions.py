"""Converts actions with their parameters between messages and the data plane.

The P4Runtime specification describes this in "Action Specification".
"""

from __future__ import annotations

from softswitch.p4runtime import bytestring
from softswitch.p4runtime.schema import ActionSchema
from softswitch.p4runtime.status import invalid
from softswitch.p4runtime.stubs import p4runtime_pb2 as p4rt


def decode_params(action: ActionSchema, wanted: p4rt.Action) -> tuple[int, ...]:
    """Return the parameters of an action, in the program's order."""
    values: list[int | None] = [None] * len(action.params)
    for param in wanted.params:
        schema = action.params_by_id.get(param.param_id)
        if schema is None:
            raise invalid(f"action {action.name} has no parameter with id {param.param_id}")
        if values[schema.index] is not None:
            raise invalid(f"{schema.name} is given twice")
        values[schema.index] = bytestring.decode(param.value, schema.width, schema.name)
    if None in values:
        raise invalid(f"{action.params[values.index(None)].name} is missing")
    return tuple(values)  # type: ignore[arg-type]  # no None is left


def encode_action(out: p4rt.Action, action: ActionSchema, params: tuple[int, ...]) -> None:
    """Fill in an action with its parameters."""
    out.action_id = action.id
    for schema, value in zip(action.params, params, strict=True):
        out.params.add(param_id=schema.id, value=bytestring.encode(value))
