"""Measures and computes the bytes that leave a site in a step of training, beside published factors.

    python -m evaluation.sites bytes [--sites 2 8] [--parameters 1000000] [--every 100]

Sites are agents of this process that average random values over loopback. A sum over N sites' trees moves each value N
- 1 times towards the roots and N - 1 times back, so the computed bytes of each site are 2 (N - 1) / N times its own.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass

import numpy as np

from evaluation import commands
from overlay.core.site_network import SiteNetwork
from overlay.sites import SiteGroup, init
from overlay.sites.command import CHUNK_VALUES, SiteSettings, make_coordinator
from overlay.sites.group import FLOAT_BITS
from overlay.sites.packing import bits_a_value

SEED = 7


@dataclass(frozen=True)
class Way:
    """A way in which values travel.

    Attributes:
        bits: as for `SiteGroup.average`.
        fragments: number of rounds in which the model travels once.
        each_step: the model travels in every step, not every `every` steps.
    """

    name: str
    bits: int = FLOAT_BITS
    fragments: int = 1
    each_step: bool = False

    def computed(self, sites: int, parameters: int, every: int) -> float:
        """Return the bytes that leave a site in a step, without headers."""
        bits = float(FLOAT_BITS) if self.bits == FLOAT_BITS else bits_a_value(self.bits, sites)
        return 2 * (sites - 1) / sites * parameters * bits / 8 / (1 if self.each_step else every)


WAYS = (
    Way("float32 in each step", each_step=True),
    Way("DiLoCo, float32"),
    Way("DiLoCo, 8 bits", 8),
    Way("DiLoCo, 4 bits", 4),
    Way("Streaming DiLoCo, 4 bits", 4, fragments=4),
)
PUBLISHED = (
    ("INTELLECT-1 (2412.01152, abstract): DiLoCo, 100 inner steps, int8", 400),
    ("Streaming DiLoCo (2501.18512, abstract): bandwidth, two orders of magnitude", 100),
)


@dataclass(frozen=True)
class Row:
    """The bytes of one way.

    Attributes:
        computed, measured: bytes that leave a site in a step.
        factor: how many times fewer these are than with float32 in each step, as measured.
        at_once: bytes of the largest round.
    """

    sites: int
    way: str
    computed: float
    measured: float
    factor: float
    at_once: float


def measured(groups: Sequence[SiteGroup], way: Way, parameters: int, first: int) -> float:
    """Return the bytes that left a site, in the mean, while the model has travelled once, from the round `first` on.
    The counters are read when all sites have their averages: a site that has its own may still be passing others' on.
    """

    def train(index: int) -> None:
        rng = np.random.default_rng(SEED + index)
        for number in range(way.fragments):
            values = rng.standard_normal(parameters // way.fragments).astype(np.float32)
            groups[index].average(values, round=first + number, bits=way.bits)

    before = sum(group.bytes_sent() for group in groups)
    with ThreadPoolExecutor(len(groups)) as pool:
        list(pool.map(train, range(len(groups))))
    return (sum(group.bytes_sent() for group in groups) - before) / len(groups)


def rows(sites: int, parameters: int, every: int) -> list[Row]:
    found: list[Row] = []
    with (
        make_coordinator("127.0.0.1", 0, SiteSettings(sites, probe_seconds=0.0), SiteNetwork(CHUNK_VALUES)) as at,
        ThreadPoolExecutor(sites) as pool,
    ):
        where = f"127.0.0.1:{at.address[1]}"
        joined = list(pool.map(lambda k: init(where, f"site{k}", listen="127.0.0.1:0"), range(sites)))
        groups = [group for group in joined if group is not None]
        list(pool.map(lambda group: group.agree(np.zeros(8, np.uint8), 0), groups))
        number = 0
        for way in WAYS:
            moved = measured(groups, way, parameters, number)
            number += way.fragments
            a_step = moved / (1 if way.each_step else every)
            factor = found[0].measured / a_step if found else 1.0
            computed = way.computed(sites, parameters, every)
            found.append(Row(sites, way.name, computed, a_step, factor, moved / way.fragments))
        list(pool.map(SiteGroup.close, groups))
    return found


def main(argv: Sequence[str] | None = None) -> int:
    parser = commands.parser("sites bytes", __doc__)
    parser.add_argument("--sites", type=int, nargs="+", default=[2, 8], metavar="N", help="(default: 2 8)")
    parser.add_argument("--parameters", type=int, default=1_000_000, help="of the model (default %(default)s)")
    parser.add_argument("--every", type=int, default=100, help="steps of a round (default %(default)s, as published)")
    parser.add_argument("--json", action="store_true", help="instead of the table")
    arguments = parser.parse_args(argv)
    found = [row for sites in arguments.sites for row in rows(sites, arguments.parameters, arguments.every)]
    if arguments.json:
        print(json.dumps([asdict(row) for row in found], indent=1))
        return 0
    print(f"{'sites':>5}  {'':<26} {'computed':>11} {'measured':>11} {'factor':>8} {'KB at once':>11}")
    for row in found:
        print(f"{row.sites:>5}  {row.way:<26} {row.computed:>11.0f} {row.measured:>11.0f} {row.factor:>8.0f} "
              f"{row.at_once / 1000:>11.0f}")  # fmt: skip
    print("\n".join(f"{words}: {factor}" for words, factor in PUBLISHED))
    return 0
