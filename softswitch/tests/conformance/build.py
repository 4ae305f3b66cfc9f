"""``python -m softswitch.tests.conformance.build``: compile `programs/` again. Needs p4c-bm2-ss on PATH."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from softswitch.tests.conformance.samples import NotCompiled, compile_sample, find
from softswitch.tests.dataplane.programs import compact

PROGRAMS = Path(__file__).parent / "programs"


def main() -> int:
    for sample in find(PROGRAMS):
        try:
            with tempfile.TemporaryDirectory() as work:
                config, info = compile_sample(sample, Path(work))
        except NotCompiled as error:
            print(f"{sample.name}: {error}", file=sys.stderr)
            return 1
        (PROGRAMS / f"{sample.name}.json").write_text(compact(config.decode(), keep_lines=False))
        (PROGRAMS / f"{sample.name}.p4info.txtpb").write_text(info)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
