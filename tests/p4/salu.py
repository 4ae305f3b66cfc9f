"""Tofino's stateful ALU: executes its instructions, as the compiler writes them, on a cell.

It has two comparisons (cmplo, cmphi), two ALUs for each of the two words, one word of output. Written from the syntax
of p4c's assembler; it knows only what the compiler makes of our program, and anything else is an error.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from p4src.artifacts import REGISTERS, find
from tests.model.merge import WORD, signed

COMPARISONS = {
    "equ": lambda difference: difference == 0,
    "neq": lambda difference: difference != 0,
    "grt.u": lambda difference: difference > 0,
    "lss.u": lambda difference: difference < 0,
    "geq.u": lambda difference: difference >= 0,
    "leq.u": lambda difference: difference <= 0,
}
OPERATIONS = {
    "alu_a": lambda a: a,
    "add": lambda a, b: (a + b) & WORD,
    "or": lambda a, b: a | b,
    "maxs": lambda a, b: max(a, b, key=signed),
}


@dataclass
class Register:
    """A register's inputs (bit 64 on: phv_lo, bit 96 on: phv_hi), whether its cells are pairs, and its actions."""

    inputs: dict[int, str] = field(default_factory=dict)
    pairs: bool = False
    actions: dict[str, list[str]] = field(default_factory=dict)

    def execute(self, action: str, cell: tuple[int, int], low: int, high: int) -> tuple[tuple[int, int], int]:
        """Return (new cell, output) for the operands phv_lo and phv_hi. If a cell is no pair, its second word is 0."""
        memory = {"lo": cell[0], "hi": cell[1]}
        sources = {"phv_lo": low, "phv_hi": high, **memory}
        instructions = [split(text) for text in self.actions[action]]
        true: dict[str, bool] = {"cmplo": False, "cmphi": False}
        for name, operands in instructions:
            if name in COMPARISONS:
                # Words are extended by zeros to 34 bits, so that a difference does not wrap.
                difference = sum(
                    -sources[operand[1:]] if operand.startswith("-") else sources[operand] for operand in operands[1:]
                )
                true["cmp" + operands[0].removeprefix("cmp")] = COMPARISONS[name](difference)
        results: dict[str, int] = {}
        output = 0
        for name, operands in instructions:
            if name in OPERATIONS:
                if not holds(operands, true):
                    continue
                target, *words = [operand for operand in operands if not is_predicate(operand)]
                value = OPERATIONS[name](*(int(w) if w.isdigit() else sources[w] for w in words))
                assert target not in results, f"two ALUs write {target} in {action}"
                results[target] = value
        for name, operands in instructions:
            if name == "output" and "word1" in operands:
                continue
            if name == "output" and holds(operands, true):
                if operands[-1] == "predicate":
                    output = 1
                    continue
                where, word = operands[-1].split("_")
                output = memory[word] if where == "mem" else results.get(word, memory[word] if self.pairs else 0)
            elif name not in COMPARISONS and name not in OPERATIONS and name != "output":
                raise AssertionError(f"unknown instruction {name} in {action}")
        after = {**memory, **results} if self.pairs else {"lo": results.get("lo", memory["lo"]), "hi": 0}
        return (after["lo"], after["hi"]), output


def split(text: str) -> tuple[str, list[str]]:
    """Return an instruction as its name and operands."""
    name, _, rest = text.partition(" ")
    return name, [operand.strip() for operand in rest.split(",")]


def is_predicate(operand: str) -> bool:
    return "cmp" in operand


def holds(operands: list[str], true: dict[str, bool]) -> bool:
    """Return whether the predicate, if there is one, is true."""
    if not is_predicate(operands[0]):
        return True
    expression = operands[0].replace("!", " not ").replace("&", " and ").replace("|", " or ")
    assert re.fullmatch(r"[()\s]*((cmplo|cmphi|cmp[0-3]|not|and|or)[()\s]*)+", expression), operands[0]
    return bool(eval(expression, {"__builtins__": {}}, dict(true)))


def registers(path: Path | None = None) -> dict[str, Register]:
    """Return the compiled program's registers (default: of tna), by the last part of their names in P4.

    On Tofino 2 operands begin at bit 0 instead of 64, and comparisons have numbers; if two words are output, the first
    counts here.
    """
    found: dict[str, Register] = {}
    current = Register()
    action: list[str] = []
    for line in (path or find("tna").directory / REGISTERS).read_text().splitlines():
        text = line.strip()
        if text.startswith("p4:"):
            name = re.search(r"name: ([\w.]+),", text)
            assert name is not None, text
            current = found.setdefault(name[1].removesuffix(".pairs").rpartition(".")[2], Register())
        elif text.startswith("format:"):
            current.pairs = "hi" in text
        elif text.startswith("exact group"):
            for bit, operand in re.findall(r"(\d+): ([\w.]+(?:-\d+)?)", text.partition("{")[2]):
                current.inputs[int(bit) % 64 + 64] = operand
        elif text.startswith("- "):
            action.append(text[2:])
        elif text.endswith(":") and not text.startswith(("stateful", "input_xbar", "actions")):
            action = current.actions.setdefault(text[:-1], [])
    return found
