"""The C code of workers, parameter servers and softswitch under sanitizers: `make sanitize`.

    python -m tests.sanitize [address] [undefined] [thread] [--rounds N]

`address` finds wrong accesses of memory (ASan), `undefined` undefined behaviour (UBSan), `thread` data races (TSan).
A whole job (tests/sanitized.py) runs with instrumented libraries: sums with loss, other collectives, configurations
that change during sums, interfaces that are made again, forks, and closing in the middle of a sum. Needs root (it makes
network namespaces) and the compiler's sanitizer libraries. Exit status: 0 when nothing was found; 1 when something
was, which is printed; 2 when it cannot run here, with the reason printed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FLAGS = {
    "address": "-fsanitize=address",
    "undefined": "-fsanitize=undefined,float-cast-overflow",
    "thread": "-fsanitize=thread",
}
KINDS = tuple(FLAGS)
LIBRARIES = {"address": "libasan.so", "undefined": "libubsan.so", "thread": "libtsan.so"}
# Python, numpy and gRPC are not instrumented: their memory accesses are not checked, nor their leaks reported.
OPTIONS = {
    "address": ("ASAN_OPTIONS", "detect_leaks=0"),
    "undefined": ("UBSAN_OPTIONS", "print_stacktrace=1"),
    "thread": ("TSAN_OPTIONS", "ignore_noninstrumented_modules=1:die_after_fork=0"),
}
SECONDS = 600


def environment(kind: str, log: Path, optimised: bool = True) -> dict[str, str]:
    """Return the environment that a process needs for instrumented libraries. optimised: their code runs faster, and
    takes several times as long to compile.

    Raises OSError with the reason why it cannot run here.
    """
    compiler = shutil.which("cc")
    if compiler is None:
        raise OSError("there is no C compiler (cc)")
    if os.geteuid():
        raise OSError("needs root: makes network namespaces")
    library, (option, text) = LIBRARIES[kind], OPTIONS[kind]
    asked = subprocess.run([compiler, f"-print-file-name={library}"], capture_output=True, text=True, check=False)
    path = Path(asked.stdout.strip())
    if not path.is_absolute():
        raise OSError(f"the compiler has no {library} (Debian: apt-get install libgcc-12-dev, or your gcc's)")
    flags = f"{FLAGS[kind]} -g {'-O1' if optimised else '-O0'} -fno-omit-frame-pointer"
    made = {"INART_CFLAGS": flags, "SOFTSWITCH_CFLAGS": flags, "LD_PRELOAD": str(path.resolve())}
    made[option] = f"{text}:log_path={log}"
    made["GRPC_ENABLE_FORK_SUPPORT"] = "0"  # gRPC's fork handlers do not work together with a sanitizer's fork.
    probe = subprocess.run(
        [sys.executable, "-c", "import ctypes, numpy"],
        env=os.environ | made,
        capture_output=True,
        text=True,
        check=False,
    )
    if probe.returncode:
        raise OSError(f"Python does not start with {library}: {probe.stderr.strip()[-300:]}")
    return made


def reports(kind: str, rounds: int, optimised: bool = True) -> str:
    """Return what the sanitizer has found, or "" for nothing. optimised: as in `environment`.

    Raises OSError when it cannot run here, and RuntimeError when the job failed.
    """
    with tempfile.TemporaryDirectory(prefix="inart-sanitize-") as folder:
        log = Path(folder) / "report"
        command = [sys.executable, "-m", "tests.sanitized", str(rounds)]
        done = subprocess.run(
            command, env=os.environ | environment(kind, log, optimised), cwd=ROOT, capture_output=True, text=True,
            timeout=SECONDS, check=False,
        )  # fmt: skip
        found = "\n".join(path.read_text(errors="replace") for path in sorted(Path(folder).iterdir()))
        if not found and (done.returncode or not done.stdout.endswith("good\n")):
            raise RuntimeError(f"the job failed, status {done.returncode}:\n{done.stdout}{done.stderr}")
        return found


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sanitize", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("kind", nargs="*", choices=[*KINDS, []], help="which sanitizers; all when left out")
    parser.add_argument("--rounds", type=int, default=5, help="how often all of it is done [5]")
    chosen = parser.parse_args(arguments)
    status = 0
    for kind in chosen.kind or KINDS:
        try:
            found = reports(kind, chosen.rounds)
        except OSError as error:
            print(f"{kind}: cannot run here: {error}")
            status = max(status, 2)
            continue
        print(f"{kind}: {found or 'nothing was found'}", flush=True)
        status = 1 if found else status
    return status


if __name__ == "__main__":
    sys.exit(main())
