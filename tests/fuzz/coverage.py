"""``python -m tests.fuzz.coverage``: libFuzzer on the generated C of programs, with AddressSanitizer and
UndefinedBehaviorSanitizer. An input is a list of frames, table writes, groups and offload requests.

Without programs: those of this repository that parse the most. The corpus of each is kept, made small, in
``OUTPUT/NAME/corpus`` and used again; an input that fails is left in ``OUTPUT/NAME`` and named.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from softswitch import SoftswitchError
from softswitch.tests.conformance.samples import NotCompiled
from tests.fuzz.build import build, inputs, missing_libfuzzer
from tests.fuzz.differential import ROOT, load

OURS = (
    "p4src/artifacts/v1model-4/inart.json",
    *(
        f"softswitch/tests/conformance/programs/{name}.json"
        for name in (
            "stacks",
            "unions",
            "union_stacks",
            "varbit",
            "hashes",
            "lookahead",
            "copies",
            "replicas",
            "tables",
            "profiles",
            "meters",
            "value_sets",
        )
    ),
    "softswitch/tests/dataplane/p4/router.json",
    "softswitch/tests/dataplane/p4/features.json",
    "softswitch/tests/p4runtime/digests.json",
)
MEMORY_MIB = 2048
INPUT_SECONDS = 10  # An input that takes longer than this is a finding.
MAX_INPUT = 4096


@dataclass(frozen=True)
class Result:
    """The result of fuzzing one program.

    ``edges``: the number reached of ``all_edges`` in the program and its part of the runtime.
    """

    program: str
    executions: int
    edges: int
    all_edges: int
    corpus: int
    corpus_bytes: int
    findings: tuple[str, ...]


def fuzz(path: Path, seconds: int, output: Path, seed: int) -> Result:
    """Fuzz one program. Raises ``NotCompiled`` or ``SoftswitchError`` for a program that does not load."""
    artifacts, known = load(path)
    folder = output / path.stem
    corpus = folder / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="fuzz-") as work:
        binary = build(artifacts.config, Path(work), libfuzzer=True)
        for i, data in enumerate(inputs(artifacts, known, 200, seed)):
            (corpus / f"begin-{i}").write_bytes(data)
        common = [f"-rss_limit_mb={MEMORY_MIB}", f"-timeout={INPUT_SECONDS}", f"-max_len={MAX_INPUT}"]
        done = subprocess.run(
            [str(binary), str(corpus), f"-max_total_time={seconds}", f"-seed={seed}", "-print_final_stats=1",
             f"-artifact_prefix={folder}/", *common],
            capture_output=True, text=True, errors="replace", check=False, timeout=seconds + 600,
        )  # fmt: skip
        log = done.stderr
        (folder / "log").write_text(log)
        small = Path(work) / "small"
        small.mkdir()
        merged = subprocess.run([str(binary), "-merge=1", str(small), str(corpus), *common], capture_output=True,
                                check=False, timeout=600)  # fmt: skip
        if merged.returncode == 0:
            for file in corpus.iterdir():
                file.unlink()
            for file in small.iterdir():
                (corpus / file.name).write_bytes(file.read_bytes())
    kept = [file.stat().st_size for file in corpus.iterdir()]
    findings: list[str] = []
    if done.returncode:
        summary = re.findall(r"^SUMMARY: (.*)$", log, re.M) or [f"status {done.returncode}"]
        saved = re.findall(r"Test unit written to (\S+)", log)
        findings = [f"{summary[-1]} ({', '.join(saved) or 'no input saved'})"]
    executions = re.findall(r"stat::number_of_executed_units: (\d+)", log) or re.findall(r"^#(\d+)", log, re.M)
    reached = re.findall(r"cov: (\d+)", log)
    guards = re.search(r"\((\d+) inline 8-bit counters\)", log)
    return Result(
        path.stem if path.stem != "inart" else path.parent.name,
        int(executions[-1]) if executions else 0,
        int(reached[-1]) if reached else 0,
        int(guards[1]) if guards else 0,
        len(kept),
        sum(kept),
        tuple(findings),
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.coverage", description=__doc__)
    parser.add_argument("programs", nargs="*", type=Path, metavar="FILE",
                        help="NAME.json with NAME.p4info.txtpb beside it, or NAME.p4 (needs p4c)")  # fmt: skip
    parser.add_argument("--seconds", type=int, default=60, help="per program (60)")
    parser.add_argument("--seed", type=int, default=1, help="of libFuzzer and of the first inputs (1)")
    parser.add_argument("--output", type=Path, default=Path("results/fuzz"), help="corpora, findings (results/fuzz)")
    parser.add_argument("--json", action="store_true", help="results as JSON")
    options = parser.parse_args()
    reason = missing_libfuzzer()
    if reason:
        print(reason, file=sys.stderr)
        return 2
    results: list[Result] = []
    failed = False
    for path in options.programs or [ROOT / name for name in OURS]:
        try:
            result = fuzz(path, options.seconds, options.output, options.seed)
        except (NotCompiled, SoftswitchError, OSError) as error:
            print(f"{path}: {error}", file=sys.stderr)
            failed = True
            continue
        results.append(result)
        if not options.json:
            print(
                f"{result.program:24} {result.executions:9} runs  {result.edges:5} of {result.all_edges:5} edges  "
                f"corpus {result.corpus:4} inputs {result.corpus_bytes / 1024:6.1f} KiB  "
                f"{'; '.join(result.findings) or 'no finding'}",
                flush=True,
            )
    if options.json:
        print(json.dumps([asdict(r) for r in results], indent=1))
    return 1 if failed or any(r.findings for r in results) else 0


if __name__ == "__main__":
    raise SystemExit(main())
