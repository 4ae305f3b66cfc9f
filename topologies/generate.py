"""Writes a topology made by rule as a JSON file, which every command with --topology can read.

inart emulate generate leafspine --leaves 8 --spines 4 --servers 6 --uplink 40 --output net.json
inart emulate generate clos --oversubscription 3
inart emulate generate ring --help
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from controlplane.common import command_line
from controlplane.planner.generators import shapes
from controlplane.planner.topology import TopologyError


def make_parser() -> argparse.ArgumentParser:
    parser = command_line.make("emulate generate", __doc__)
    rules = parser.add_subparsers(dest="shape", required=True, metavar="RULE")
    for name, shape in shapes().items():
        rule = rules.add_parser(name, help=shape.help, description=shape.help)
        for option, about in shape.options.items():
            default = "" if about.default is None else f" (default: {about.default:g})"
            rule.add_argument(f"--{option}", metavar="N" if about.whole else "X", help=about.help + default)
        rule.add_argument("--output", type=Path, metavar="FILE", help="default: standard output")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    arguments = make_parser().parse_args(argv)
    shape = shapes()[arguments.shape]
    given = {name: getattr(arguments, name) for name in shape.options if getattr(arguments, name) is not None}
    try:
        text = json.dumps(shape.build(given, arguments.shape).to_json(), indent=1) + "\n"
        if arguments.output is None:
            sys.stdout.write(text)
            sys.stdout.flush()
        else:
            arguments.output.write_text(text)
    except BrokenPipeError:
        command_line.end_output()
    except (TopologyError, OSError) as error:
        print(f"topologies generate: {error}", file=sys.stderr)
        return command_line.failed(error)
    return 0
