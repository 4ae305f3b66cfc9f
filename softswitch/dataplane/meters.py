"""Meters of a device, indirect and direct: configurations and per-colour counters."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

from softswitch.errors import InvalidValue

GREEN, TWO_RATES, ONE_RATE = 0, 1, 2  # modes of struct ss_meter


class NativeConfig(ctypes.Structure):
    """The C structure ``struct ss_meter_config``."""

    _fields_ = (
        ("mode", ctypes.c_uint64),
        ("first_rate", ctypes.c_uint64),
        ("second_rate", ctypes.c_uint64),
        ("first_burst", ctypes.c_uint64),
        ("second_burst", ctypes.c_uint64),
    )


class NativeBucket(ctypes.Structure):
    """The C structure ``struct ss_bucket``."""

    _fields_ = (
        ("rate", ctypes.c_uint64),
        ("burst", ctypes.c_uint64),
        ("tokens", ctypes.c_uint64),
        ("seen", ctypes.c_uint64),
    )


class NativeMeter(ctypes.Structure):
    """The C structure ``struct ss_meter``."""

    _fields_ = (
        ("mode", ctypes.c_uint32),
        ("start_us", ctypes.c_uint64),
        ("first", NativeBucket),
        ("second", NativeBucket),
        ("colours", ctypes.c_uint64 * 6),
    )


@dataclass(frozen=True)
class MeterConfig:
    """A meter's configuration: rates in bytes or packets per second, bursts in bytes or packets.

    With two rates (RFC 2698), a packet that the peak bucket cannot pay is red, and one that the committed bucket cannot
    pay is yellow. With ``single_rate`` (RFC 2697), ``pir`` is not used; a packet that the committed bucket cannot pay
    is yellow if the excess bucket can pay it, else red. The excess bucket holds ``pburst``, and is filled by what
    overflows the committed one.
    """

    cir: int
    cburst: int
    pir: int
    pburst: int
    single_rate: bool = False

    def native(self) -> NativeConfig:
        for value in (self.cir, self.cburst, self.pir, self.pburst):
            if not 0 <= value < 1 << 63:
                raise InvalidValue(f"{value} is neither rate nor burst of a meter")
        if self.single_rate:
            return NativeConfig(ONE_RATE, self.cir, 0, self.cburst, self.pburst)
        return NativeConfig(TWO_RATES, self.pir, self.cir, self.pburst, self.cburst)


Colours = tuple[tuple[int, int], tuple[int, int], tuple[int, int]]


@dataclass(frozen=True)
class MeterState:
    """A meter's state: its configuration, and (packets, bytes) per colour: green, yellow, red.

    The configuration is ``None`` where all packets are green. ``native`` has the meter's tokens, too.
    """

    config: MeterConfig | None
    colours: Colours
    native: NativeMeter


def colours(meter: NativeMeter) -> Colours:
    """Return (packets, bytes) that were green, yellow and red."""
    c = meter.colours
    return (c[0], c[1]), (c[2], c[3]), (c[4], c[5])


def config_of(meter: NativeMeter) -> MeterConfig | None:
    """Return the meter's configuration; with a single rate, ``pir`` is its ``cir``."""
    first, second = meter.first, meter.second
    if meter.mode == GREEN:
        return None
    if meter.mode == ONE_RATE:
        return MeterConfig(first.rate, first.burst, first.rate, second.burst, single_rate=True)
    return MeterConfig(second.rate, second.burst, first.rate, first.burst)


def native_config(config: MeterConfig | None) -> NativeConfig:
    """Return the native form of a configuration; with ``None`` every packet is green."""
    return NativeConfig(GREEN, 0, 0, 0, 0) if config is None else config.native()
