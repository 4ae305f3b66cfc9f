"""The agents' engines on an adversarial network in virtual time, under the sanitizers of addresses and undefined
behaviour.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.engines import fuzz
from tests.engines.build import NoCompiler, build

CASES = (
    "states",
    "aborted_scatter",
    "aborted_gather",
    "changed_sequence",
    "changed_kind",
    "rerouted_often",
    "most_workers",
)
JOBS = 120
"""Jobs of a run of the fuzzer in `make test`: about 20 s of CPU time."""
SEEDS = (1, 1_000_000, 2_000_000)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        return build(tmp_path_factory.mktemp("engines"))
    except NoCompiler as error:
        pytest.skip(str(error))


def run(program: Path, *words: object) -> str:
    """Return what the program prints; fail with its last lines if it has found something."""
    done = subprocess.run([program, *map(str, words)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return done.stdout


@pytest.mark.timeout(600)
@pytest.mark.parametrize("case", CASES)
def test_case(program: Path, case: str) -> None:
    run(program, "case", case)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", SEEDS)
def test_random_jobs_on_adversarial_networks_have_exact_results(program: Path, seed: int) -> None:
    run(program, "jobs", seed, JOBS)


@pytest.mark.nightly
def test_many_random_jobs_have_exact_results() -> None:
    assert fuzz.main(["--seconds", "3600"]) == 0
