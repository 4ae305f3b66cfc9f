"""All C is formatted as .clang-format says, and divided so that each file compiles by itself."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from controlplane.common.native_build import ENGINES
from ps_server import server
from worker_agent.native_engine import NATIVE
from worker_agent.native_worker import SOURCES

ROOT = Path(__file__).resolve().parents[1]
FORMAT = Path(sys.executable).parent / "clang-format"

ENGINE_WORDS = ("inart", "io", "engine", "worker", "root")
WORDS = {"parts": ("chunk",)}
"""Further words with which functions of a file may begin, by its name: what they are about."""


def listed(*patterns: str) -> list[Path]:
    words = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns]
    names = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    return [ROOT / name for name in names if (ROOT / name).exists()]


def test_all_c_has_one_style() -> None:
    """To mend: make format."""
    if not FORMAT.exists():
        pytest.skip("clang-format is not installed: .venv/bin/pip install -r requirements.txt")
    words = [str(FORMAT), "--dry-run", "--Werror", *map(str, listed("*.c", "*.h"))]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:2000]


def test_each_header_of_an_engine_needs_no_other_before_it(tmp_path: Path) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler (cc)")
    probe = tmp_path / "probe.c"
    for header in listed("worker_agent/native/*.h", "ps_server/native/*.h"):
        probe.write_text(f'#include "{header}"\n')
        words = [compiler, *ENGINES, "-fsyntax-only", f"-I{NATIVE}", str(probe)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{header.relative_to(ROOT)}:\n{done.stderr[:2000]}"


def test_what_files_of_an_engine_share_begins_with_the_word_of_its_file_or_engine() -> None:
    """So that grep finds it: functions that a .c file gives to others, and those that a header has."""
    shared = re.compile(r"^(static inline )?(?!static|typedef|return|else)[a-z_][\w ]*[ *](\w+)\(", re.MULTILINE)
    wrong = []
    for path in listed("worker_agent/native/*.[ch]", "ps_server/native/*.[ch]"):
        word = path.stem.split("_")[0]
        own = [word, word.rstrip("s"), *WORDS.get(path.stem, ())]
        for found in shared.finditer(path.read_text()):
            own_only = path.suffix == ".c" and found[1]
            if not own_only and not found[2].startswith(tuple(f"{word}_" for word in (*ENGINE_WORDS, *own))):
                wrong.append(f"{path.relative_to(ROOT)}: {found[2]}")
    assert not wrong


def test_no_c_file_is_included() -> None:
    """Files of an engine are compiled one by one; a header that only one file may include is a part of that file."""
    for path in {*SOURCES, *server.SOURCES, *listed("worker_agent/native/*.h", "ps_server/native/*.h")}:
        text = path.read_text()
        assert not re.search(r'#include "\w+\.c"', text), path
        assert "ncluded by" not in text, path
