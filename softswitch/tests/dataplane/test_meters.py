"""Meters: the C marker agrees with bmv2's algorithm and RFC 2697 in Python at given times; and programs see the
colours.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from softswitch import Fabric, InvalidValue, Match, NoSuchObject, NotFound, Program
from softswitch.compiler.build import RUNTIME
from softswitch.dataplane.meters import MeterConfig, NativeMeter
from softswitch.tests.support.waiting import wait_until as until

PROGRAM = Path(__file__).parents[1] / "conformance" / "programs" / "meters.json"
WRAPPER = """
#include "ss_meter.h"
unsigned execute(struct ss_meter *m, uint64_t now, uint64_t amount, uint64_t bytes) {
    return ss_meter_execute(m, now, amount, bytes);
}
"""

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler (cc)")


@pytest.fixture(scope="module")
def marker(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    directory = tmp_path_factory.mktemp("meter")
    (directory / "m.c").write_text(WRAPPER)
    flags = ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-I", str(RUNTIME)]
    subprocess.run(["cc", *flags, "-o", directory / "m.so", directory / "m.c"], check=True, timeout=60)
    library = ctypes.CDLL(str(directory / "m.so"))
    library.execute.argtypes = (ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64)
    return library


class TwoRates:
    """bmv2's Meter::execute for two rates."""

    def __init__(self, config: MeterConfig) -> None:
        self.rates = [(config.pir / 1e6, config.pburst, 2), (config.cir / 1e6, config.cburst, 1)]
        self.tokens = [config.pburst, config.cburst]
        self.last = [0, 0]

    def colour(self, now: int, amount: int) -> int:
        for i, (rate, burst, colour) in enumerate(self.rates):
            since_start = int(now * rate)
            self.tokens[i] = min(self.tokens[i] + since_start - self.last[i], burst)
            self.last[i] = since_start
            if self.tokens[i] < amount:
                return colour
            self.tokens[i] -= amount
        return 0


class OneRate:
    """The marker of RFC 2697, colour-blind: tokens at the committed rate go to the excess bucket if the other is
    full.
    """

    def __init__(self, config: MeterConfig) -> None:
        self.rate, self.most = config.cir / 1e6, (config.cburst, config.pburst)
        self.committed, self.excess = self.most
        self.last = 0

    def colour(self, now: int, amount: int) -> int:
        more = int(now * self.rate) - self.last
        self.last += more
        into = min(more, self.most[0] - self.committed)
        self.committed += into
        self.excess = min(self.excess + more - into, self.most[1])
        if self.committed >= amount:
            self.committed -= amount
            return 0
        if self.excess >= amount:
            self.excess -= amount
            return 1
        return 2


RATES = st.one_of(st.integers(0, 20), st.integers(0, 10**6), st.integers(0, 10**10))
BURSTS = st.one_of(st.integers(0, 20), st.integers(0, 10**5))
PACKETS = st.lists(
    st.tuples(st.one_of(st.integers(0, 3), st.integers(0, 10**7)), st.one_of(st.just(1), st.integers(0, 3000))),
    max_size=40,
)


def prepared(config: MeterConfig) -> NativeMeter:
    native, meter = config.native(), NativeMeter()
    meter.mode = native.mode
    for bucket, rate, burst in (
        (meter.first, native.first_rate, native.first_burst), (meter.second, native.second_rate, native.second_burst),
    ):  # fmt: skip
        bucket.rate, bucket.burst, bucket.tokens = rate, burst, burst
    return meter


@st.composite
def configs(draw: st.DrawFn) -> MeterConfig:
    single, cir = draw(st.booleans()), draw(RATES)
    return MeterConfig(cir, draw(BURSTS), cir if single else cir + draw(RATES), draw(BURSTS), single)


@given(configs(), PACKETS)
def test_colours(marker: ctypes.CDLL, config: MeterConfig, packets: list[tuple[int, int]]) -> None:
    meter, model = prepared(config), OneRate(config) if config.single_rate else TwoRates(config)
    counts = [[0, 0], [0, 0], [0, 0]]
    now = 0
    for gap, amount in packets:
        now += gap
        colour = model.colour(now, amount)
        assert marker.execute(ctypes.byref(meter), now, amount, amount) == colour
        counts[colour][0] += 1
        counts[colour][1] += amount
    assert list(meter.colours) == [n for pair in counts for n in pair]


def test_rates_without_end(marker: ctypes.CDLL) -> None:
    """With the largest numbers, every packet is green for years, and nothing overflows."""
    config = MeterConfig((1 << 63) - 1, (1 << 63) - 1, (1 << 63) - 1, (1 << 63) - 1)
    meter = prepared(config)
    for year in range(1, 100):
        assert marker.execute(ctypes.byref(meter), year * 365 * 86400 * 10**6, 1500, 1500) == 0


def colours_of(fabric: Fabric, which: int, index: int, n: int) -> list[int]:
    frames = [fabric.devices[1].process(0, bytes([which]) + index.to_bytes(4, "big") + b"\xaa\0") for _ in range(n)]
    return [frame[5] for ((_, frame),) in frames]


@pytest.fixture(name="metered")
def _metered(fabric: Fabric) -> Fabric:
    fabric.add_device(1).load(Program.load(PROGRAM.read_bytes()))
    return fabric


def test_array(metered: Fabric) -> None:
    device = metered.devices[1]
    assert colours_of(metered, 0, 2, 3) == [0, 0, 0]
    assert colours_of(metered, 0, 4, 1) == [0xAA]  # beyond the array the result is left alone
    config = MeterConfig(0, 1, 0, 2)
    device.meter_write("I.by_packets", config)
    assert colours_of(metered, 0, 2, 4) == [0, 1, 2, 2]
    assert colours_of(metered, 0, 3, 1) == [0]
    states = device.meter_read("I.by_packets")
    assert [state.config for state in states] == [config] * 4
    assert states[2].colours == ((4, 28), (1, 7), (2, 14))
    device.meter_clear("I.by_packets", 2, 1)
    assert device.meter_read("I.by_packets", 2, 1)[0].colours == ((0, 0), (0, 0), (0, 0))
    assert colours_of(metered, 0, 2, 1) == [2]  # it still has no tokens
    device.meter_restore("I.by_packets", states[3:], 2)
    assert colours_of(metered, 0, 2, 2) == [1, 2]
    device.meter_write("I.by_packets", None, 2, 1)
    assert colours_of(metered, 0, 2, 2) == [0, 0]
    with pytest.raises(NoSuchObject):
        device.meter_write("I.by_packets", None, 4, 1)
    with pytest.raises(NoSuchObject):
        device.meter_read("I.nothing")
    with pytest.raises(InvalidValue):
        device.meter_write("I.by_packets", MeterConfig(-1, 0, 0, 0))


def test_single_rate_and_tokens_that_come_back(metered: Fabric) -> None:
    device = metered.devices[1]
    device.meter_write("I.by_packets", MeterConfig(0, 1, 0, 2, single_rate=True), 0, 1)
    assert colours_of(metered, 0, 0, 5) == [0, 1, 1, 2, 2]
    device.meter_write("I.by_packets", MeterConfig(1000, 1, 1000, 1), 0, 1)
    assert colours_of(metered, 0, 0, 1) == [0]
    until(lambda: colours_of(metered, 0, 0, 1) == [0])


def test_direct(metered: Fabric) -> None:
    device = metered.devices[1]
    first, second = (Match("exact", 1),), (Match("exact", 2),)
    device.insert("I.exact_table", first, "I.by_packet", ())
    assert colours_of(metered, 2, 1, 2) == [0, 0]
    assert colours_of(metered, 2, 2, 1) == [3]  # a miss does not execute it
    device.direct_meter_write("I.exact_table", first, MeterConfig(0, 1, 0, 1))
    device.insert("I.exact_table", second, "I.by_packet", ())
    assert colours_of(metered, 2, 1, 2) == [0, 2]
    assert colours_of(metered, 2, 2, 2) == [0, 0]
    assert device.direct_meter_read("I.exact_table", first).colours == ((3, 21), (0, 0), (1, 7))
    device.delete("I.exact_table", first)
    with pytest.raises(NotFound):
        device.direct_meter_read("I.exact_table", first)
    device.insert("I.exact_table", first, "I.by_packet", ())
    assert device.direct_meter_read("I.exact_table", first).config is None
