"""Parts of the C code by themselves, under the sanitizers of addresses, undefined behaviour and threads, in cases that
rarely occur.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from worker_agent import native_worker
from worker_agent.native_engine import NATIVE

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
RUNTIME = ROOT / "softswitch" / "runtime"
SANITIZE = ["-fsanitize=address,undefined,float-cast-overflow", "-fno-sanitize-recover=all"]
THREADS = ["-fsanitize=thread"]
FLAGS = ["-std=gnu11", "-O0", "-g", "-w", "-pthread", "-fno-strict-aliasing"]

WORKER = (
    "thread_that_cannot_start",
    "time_that_goes_backwards",
    "unused_time_is_lost",
    "lost_results_halve_the_window",
    "reordering_is_forgotten",
    "super_frames_come_back",
    "attempts_become_rarer",
    "any_word_is_a_number",
    "values_that_were_written_meanwhile",
)
CLIENT = (
    "a_client_goes_on_when_signals_are_handled",
    "threads_lose_no_wake_up",
    "nccl_connects_when_signals_are_handled",
)
SWITCH = ("full_is_not_refused", "events_have_a_limit_in_bytes")


def cc(*sanitizers: str) -> tuple[list[str], bool]:
    """Return the compiler's command, and whether it has these sanitizers, which are in the command then."""
    path = shutil.which("cc")
    if path is None:
        pytest.skip("there is no C compiler (cc)")
    probe = [path, *sanitizers, "-x", "c", "-", "-o", "/dev/null"]
    can = subprocess.run(probe, input="int main(void) { return 0; }", text=True, capture_output=True, check=False)
    return [path, *FLAGS, *(sanitizers if can.returncode == 0 else [])], can.returncode == 0


@pytest.fixture(scope="module")
def compiler() -> list[str]:
    """Return the compiler and the sanitizers that it has."""
    return cc(*SANITIZE)[0]


def build(compiler: list[str], output: Path, *arguments: object) -> Path:
    """Build a program of this folder."""
    command = [*compiler, f"-I{HERE}", "-o", str(output), *map(str, arguments), "-lm"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return output


@pytest.fixture(scope="module")
def worker(compiler: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("native") / "worker_checks"
    calls = ["-D_GNU_SOURCE", "-include", HERE / "checked_calls.h"]
    return build(compiler, output, f"-I{NATIVE}", *calls, HERE / "worker_checks.c", *native_worker.SOURCES)


@pytest.fixture(scope="module")
def switch(compiler: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_switch(compiler, tmp_path_factory.mktemp("native") / "switch_checks")


@pytest.fixture(scope="module")
def client(compiler: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    output, clients = tmp_path_factory.mktemp("native") / "client_checks", ROOT / "worker_agent" / "clients"
    calls = [f"-I{clients}", "-D_GNU_SOURCE", "-include", HERE / "client_calls.h"]
    sources = [clients / "client.c", clients / "nccl_sockets.c", clients / "nccl_collnet.c"]
    return build(compiler, output, *calls, HERE / "client_checks.c", *sources)


def build_switch(compiler: list[str], output: Path) -> Path:
    others = [source for source in sorted(RUNTIME.glob("*.c")) if source.name not in ("transmit.c", "idle.c")]
    return build(compiler, output, f"-I{RUNTIME}", HERE / "switch_checks.c", *others)


def run(program: Path, name: str) -> None:
    done = subprocess.run([program, name], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    if done.stdout:
        pytest.skip(done.stdout.strip())


@pytest.mark.parametrize("name", WORKER)
def test_worker(worker: Path, name: str) -> None:
    run(worker, name)


@pytest.mark.parametrize("name", CLIENT)
def test_client(client: Path, name: str) -> None:
    run(client, name)


@pytest.mark.parametrize("name", SWITCH)
def test_switch(switch: Path, name: str) -> None:
    run(switch, name)


def test_the_host_and_the_switch_count_events_under_one_lock(tmp_path: Path) -> None:
    command, can = cc(*THREADS)
    if not can:
        pytest.skip("the compiler has no sanitizer of threads (Debian: apt-get install libgcc-12-dev, or your gcc's)")
    run(build_switch(command, tmp_path / "switch_checks"), "events_are_counted_under_their_lock")
