"""Forwarding pipeline configs: P4Info, program and their schema, made once and shared by all devices that use them.

The P4Runtime specification describes this in "P4 Forwarding-Pipeline Configuration".
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from softswitch import errors
from softswitch.dataplane.program import Program
from softswitch.p4runtime.device_config import program_of
from softswitch.p4runtime.schema import Schema
from softswitch.p4runtime.status import from_data_plane, invalid
from softswitch.p4runtime.stubs import p4info_pb2
from softswitch.p4runtime.stubs import p4runtime_pb2 as p4rt

_KEPT = 16


@dataclass(frozen=True)
class Pipeline:
    """A verified config. ``config`` is the one that the client sent and gets back."""

    config: p4rt.ForwardingPipelineConfig
    program: Program
    schema: Schema
    digest: bytes

    def same_as(self, other: Pipeline | None) -> bool:
        return other is not None and self.digest == other.digest


class Loader:
    """Verifies configs, and caches the last few, so that 45 switches with one program cost one compilation."""

    def __init__(self, load_program: Callable[[bytes], Program]) -> None:
        self._load_program = load_program
        self._lock = threading.Lock()
        self._known: OrderedDict[bytes, tuple[Program, Schema]] = OrderedDict()

    def load(self, config: p4rt.ForwardingPipelineConfig) -> Pipeline:
        """Parse, compile and check a config.

        Raise :class:`P4RuntimeError` (INVALID_ARGUMENT) if it cannot be realised.
        """
        if not config.p4_device_config:
            raise invalid("the config has no p4_device_config (the bmv2 JSON)")
        if not config.HasField("p4info"):
            raise invalid("the config has no p4info")
        digest = hashlib.sha256(config.p4info.SerializeToString(deterministic=True) + config.p4_device_config).digest()
        # The lock also ensures that a program is compiled once when all switches get it at the same time.
        with self._lock:
            known = self._known.get(digest)
            if known is None:
                program = self._program(config.p4_device_config)
                known = (program, Schema(config.p4info, program))
                self._known[digest] = known
                if len(self._known) > _KEPT:
                    self._known.popitem(last=False)
            self._known.move_to_end(digest)
        kept = p4rt.ForwardingPipelineConfig()
        kept.CopyFrom(config)
        return Pipeline(kept, *known, digest)

    def _program(self, device_config: bytes) -> Program:
        try:
            return self._load_program(program_of(device_config))
        except errors.SoftswitchError as error:
            raise from_data_plane(error) from error


def config_of(p4info: p4info_pb2.P4Info, bmv2_json: bytes) -> p4rt.ForwardingPipelineConfig:
    """Return the config that a client would send for this program."""
    return p4rt.ForwardingPipelineConfig(p4info=p4info, p4_device_config=bmv2_json)


def answer(pipeline: Pipeline | None, response_type: int) -> p4rt.GetForwardingPipelineConfigResponse:
    """Return the parts of the config that a client asks for; no config at all if there is no pipeline."""
    request = p4rt.GetForwardingPipelineConfigRequest
    response = p4rt.GetForwardingPipelineConfigResponse()
    if response_type not in request.ResponseType.values():
        raise invalid(f"response type {response_type} does not exist")
    if pipeline is None:
        return response
    response.config.SetInParent()
    if response_type in (request.ALL, request.P4INFO_AND_COOKIE):
        response.config.p4info.CopyFrom(pipeline.config.p4info)
    if response_type in (request.ALL, request.DEVICE_CONFIG_AND_COOKIE):
        response.config.p4_device_config = pipeline.config.p4_device_config
    if pipeline.config.HasField("cookie"):
        response.config.cookie.CopyFrom(pipeline.config.cookie)
    return response
