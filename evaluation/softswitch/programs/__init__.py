"""Compiled programs with large tables; ``python -m evaluation.softswitch.programs`` compiles them again."""

from pathlib import Path

TABLES = Path(__file__).with_name("tables.json")
STATEFUL = Path(__file__).with_name("stateful.json")
