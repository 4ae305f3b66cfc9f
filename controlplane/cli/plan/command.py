"""The planner's command line: plans a job on a topology, without any switch.

inart plan --topology fattree:k=6 --job workers=50,ps=4,seed=1
inart plan --compare --topology fattree:k=6 --job workers=50,ps=4,seed=1
inart plan --topology testbed --strategy atp,inart
inart plan pareto|place --topology fattree:k=6 --job workers=40,ps=4,seed=1
"""

from __future__ import annotations

import gc
import importlib
import sys
import time

from controlplane.cli.plan.arguments import loaded, module_of, parse, refuse_unwritable, refuse_useless
from controlplane.common import command_line
from controlplane.planner.plan.planning import ERRORS


def main(argv: list[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    begun = time.monotonic()
    # Plans are large and contain no cycles; the garbage collector's search for cycles took a fifth of the time.
    gc.disable()
    try:
        return _run(argv, begun)
    finally:
        gc.enable()


def _run(argv: list[str] | None, begun: float) -> int:
    """Run the command and return the exit status; --time-limit counts from the monotonic time `begun`."""
    arguments = parse(sys.argv[1:] if argv is None else argv, __doc__)
    arguments.begun = begun
    try:
        refuse_useless(arguments)
        refuse_unwritable(arguments)
        topology, job = loaded(arguments)
        module = importlib.import_module(f"controlplane.cli.plan.{module_of(arguments)}")
        module.command(arguments, topology, job)
        command_line.flush()
    except BrokenPipeError:
        command_line.end_output()
    except ERRORS as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:  # The plan is printed by now; its picture or file cannot be written.
        print(f"error: cannot write {error.filename or 'the output'}: {error.strerror}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
