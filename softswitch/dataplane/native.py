"""The runtime's C interface, for ctypes."""

from __future__ import annotations

import ctypes
import functools

from softswitch.compiler.build import compile_runtime

CLASSES = 8
"""Number of classes of service; v1model's field `priority` has 3 bits."""


class Shape(ctypes.Structure):
    """The C structure ``struct ss_shape``."""

    _fields_ = (
        ("rate_bps", ctypes.c_double),
        ("burst_bytes", ctypes.c_uint64),
        ("queue_bytes", ctypes.c_uint64),
        ("queue_packets", ctypes.c_uint64),
        ("ecn_packets", ctypes.c_uint64),
        ("ahead_bytes", ctypes.c_uint64),
        ("delay_ns", ctypes.c_uint64),
        ("jitter_ns", ctypes.c_uint64),
        ("reorder_ns", ctypes.c_uint64),
        ("loss", ctypes.c_double),
        ("duplicate", ctypes.c_double),
        ("reorder", ctypes.c_double),
        ("corrupt", ctypes.c_double),
        ("corrupt_every", ctypes.c_uint64),
        ("corrupt_from", ctypes.c_uint64),
        ("corrupt_until", ctypes.c_uint64),
        ("corrupt_udp", ctypes.c_uint64),
        ("class_bps", ctypes.c_double * CLASSES),
        ("corrupt_hidden", ctypes.c_uint64),
        ("dscp_classes", ctypes.c_uint64),
    )


class Event(ctypes.Structure):
    """The C structure ``struct ss_event``; its data follow it."""

    _fields_ = (
        ("next", ctypes.c_void_p),
        ("type", ctypes.c_uint32),
        ("port", ctypes.c_uint32),
        ("len", ctypes.c_uint32),
        ("generation", ctypes.c_uint32),
        ("device", ctypes.c_uint64),
    )


PACKET_IN, CAPTURE, LOG, DIGEST, TRACE, IDLE, PCAP_ENDED = 1, 2, 3, 4, 5, 6, 7
# Format of struct entry_record: handle, packets, bytes, idle timeout in ns, us since the last hit, priority, action,
# is_const, reserved.
ENTRY = "<QQQQQiIII"

_p, _u32, _i32, _u64, _i64, _bytes = (
    ctypes.c_void_p,
    ctypes.c_uint32,
    ctypes.c_int32,
    ctypes.c_uint64,
    ctypes.c_int64,
    ctypes.c_char_p,
)
_SIGNATURES: dict[str, tuple[object, tuple[object, ...]]] = {
    "ss_free": (None, (_p,)),
    "ss_fabric_new": (_p, (_u32, _u64)),
    "ss_fabric_start": (_i32, (_p,)),
    "ss_fabric_stop": (None, (_p,)),
    "ss_fabric_free": (None, (_p,)),
    "ss_event_wait": (_p, (_p,)),
    "ss_events_close": (None, (_p,)),
    "ss_device_new": (_p, (_p, _u64, _i32)),
    "ss_device_load": (_i32, (_p, _p)),
    "ss_device_activate": (None, (_p,)),
    "ss_device_stage": (_p, (_p,)),
    "ss_device_discard": (None, (_p,)),
    "ss_device_adopt": (None, (_p, _p)),
    "ss_device_freeze": (None, (_p,)),
    "ss_device_thaw": (None, (_p,)),
    "ss_device_generation": (_u32, (_p,)),
    "ss_device_trace": (_i32, (_p, _p, _u32, _u32, _i32, _i32)),
    "ss_digest_enable": (_i32, (_p, _u32, _u32, _u32)),
    "ss_digest_forget": (_i32, (_p, _u32, _bytes, _u32, _u32)),
    "ss_device_capture": (None, (_p, _u32)),
    "ss_device_priorities": (None, (_p, _u32)),
    "ss_device_drops": (None, (_p, _p)),
    "ss_drop_name": (_bytes, (_u32,)),
    "ss_port_add": (_i32, (_p, _u32, _bytes, _u32)),
    "ss_port_remove": (_i32, (_p, _u32)),
    "ss_port_reopen": (_i32, (_p, _u32)),
    "ss_port_shape": (_i32, (_p, _u32, ctypes.POINTER(Shape))),
    "ss_port_pcap": (_i32, (_p, _u32, _i32, _i32)),
    "ss_port_stats": (_i32, (_p, _u32, _p)),
    "ss_link": (_i32, (_p, _u32, _p, _u32)),
    "ss_inject": (_i32, (_p, _u32, _bytes, _u32)),
    "ss_process": (_i64, (_p, _u32, _bytes, _u32, ctypes.POINTER(_p))),
    "ss_table_insert": (
        _i32,
        (_p, _u32, _bytes, _bytes, _bytes, _i32, _u32, _bytes, _u32, _u32, ctypes.POINTER(_u64)),
    ),
    "ss_table_modify": (_i32, (_p, _u32, _bytes, _bytes, _bytes, _i32, _u32, _bytes, _u32)),
    "ss_table_delete": (_i32, (_p, _u32, _bytes, _bytes, _bytes, _i32)),
    "ss_write": (_u64, (_p, _p, _bytes, _u64, ctypes.POINTER(_u64), _u32)),
    "ss_table_get": (_i32, (_p, _u32, _bytes, _bytes, _bytes, _i32, _p)),
    "ss_table_dump": (_i64, (_p, _u32, ctypes.POINTER(_p))),
    "ss_table_set_default": (_i32, (_p, _u32, _u32, _bytes, _u32)),
    "ss_table_count": (_i32, (_p, _u32, _bytes, _bytes, _bytes, _i32, _u64, _u64)),
    "ss_counter_read": (_i32, (_p, _u32, _u64, _u64, _p)),
    "ss_counter_write": (_i32, (_p, _u32, _u64, _u64, _u64)),
    "ss_register_copy": (_i32, (_p, _u32, _u64, _u64, _u32, _u64, _p, _u32)),
    "ss_table_idle": (_i32, (_p, _u32, _bytes, _bytes, _bytes, _i32, _u64)),
    "ss_table_meter": (_i32, (_p, _u32, _bytes, _bytes, _bytes, _i32, _p, _p, _u32, _p)),
    "ss_meter_access": (_i32, (_p, _u32, _u64, _u64, _p, _p, _u32, _p)),
    "ss_member_set": (_i32, (_p, _u32, _u32, _u32, _bytes, _u32)),
    "ss_member_free": (_i32, (_p, _u32, _u32)),
    "ss_choice_set": (_i32, (_p, _u32, _u32, _p, _u32)),
    "ss_choice_free": (_i32, (_p, _u32, _u32)),
    "ss_value_set_write": (_i32, (_p, _u32, _bytes, _u32)),
    "ss_crc_set": (_i32, (_p, _u32, _u32, _u32, _u32, _u32)),
    "ss_group_write": (_i32, (_p, _u32, _u32, _bytes, _i32, _u32)),
}


@functools.cache
def library() -> ctypes.CDLL:
    """Return the runtime, which is compiled at first use."""
    lib = ctypes.CDLL(str(compile_runtime()))
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(lib, name)
        function.restype = result
        function.argtypes = arguments
    return lib


@functools.cache
def drop_names() -> tuple[str, ...]:
    """Return the drop reasons, in the order of the native counters."""
    names: list[str] = []
    while True:
        name = library().ss_drop_name(len(names))
        if name is None:
            return tuple(names)
        names.append(name.decode())
