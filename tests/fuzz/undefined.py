"""Counts events that cannot be compared: operations that v1model leaves undefined, and random numbers. On undefined
operations bmv2 aborts or reads memory that is not its own. The generated C is changed before it is compiled.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from softswitch import Program
from softswitch.compiler.build import compile_program
from softswitch.dataplane import program

COUNTER = "fuzz_undefined"
ERRORS = "fuzz_parser_errors"
_PRELUDE = f"""
__attribute__((visibility("default"))) uint64_t {COUNTER}, {ERRORS};
static __attribute__((unused)) bool fuzz_within(uint64_t i, uint64_t n) {{ return i < n || ({COUNTER}++, false); }}
#define ss_bound(i, n) ({{ const uint64_t at_ = (i); {COUNTER} += at_ >= (n); ss_bound(at_, n); }})
"""
_DIVISION = """#define ss_{op}_{kind}(a, b) \\
    ({{ __auto_type b_ = (b); fuzz_undefined += b_ == 0; ss_{op}_{kind}(a, b_); }})
"""
_INDEX = re.compile(r"\b((?:row\d+_)?ix) < (\d+u)")
_ERROR = re.compile(r"\{ (p->base\.standard\.parser_error = [^;]*; goto done; \})")
_ASSERT = re.compile(r"(s->services->log\([^;]*\); )(p->base\.standard\.egress_spec = SS_DROP_PORT; )")


def instrument(source: str) -> str:
    """Return the generated C with counting of undefined events added. Counted are indices beyond registers, counters
    and header stacks; divisions by zero; assertions that do not hold; random numbers.
    """
    divisions = sorted(set(re.findall(r"\bss_(div|mod)_(\w+)\(", source)))
    prelude = _PRELUDE + "".join(_DIVISION.format(op=op, kind=kind) for op, kind in divisions)
    source = _INDEX.sub(r"fuzz_within(\1, \2)", source)
    source = source.replace("s->services->random(", f"({COUNTER}++, s->services->random)(")
    source = _ERROR.sub(rf"{{ {ERRORS}++; \1", source)
    source = _ASSERT.sub(rf"\1{COUNTER}++; \2", source)
    include = '#include "ss_bits.h"\n'
    before, found, after = source.partition(include)
    if not found:
        raise ValueError(f"the generated code does not have {include.strip()}")
    return before + found + prelude + after


def _compile(source: str, quick: bool = False) -> tuple[Path, str]:
    return compile_program(instrument(source), quick)


@contextmanager
def counted() -> Iterator[None]:
    """Make programs that are loaded inside this context count undefined events."""
    original = program.compile_program
    program.compile_program = _compile
    try:
        yield
    finally:
        program.compile_program = original


def count(loaded: Program) -> int:
    """Return how often a program loaded under :func:`counted` has done something undefined."""
    return ctypes.c_uint64.in_dll(loaded.library, COUNTER).value


def parser_errors(loaded: Program) -> int:
    """Return how often the program's parser has ended with an error.

    The content of a header that it did not reach is undefined too.
    """
    return ctypes.c_uint64.in_dll(loaded.library, ERRORS).value
