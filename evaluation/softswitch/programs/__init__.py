"""The program with large tables, compiled; ``python -m evaluation.softswitch.programs`` compiles it again."""

from pathlib import Path

TABLES = Path(__file__).with_name("tables.json")
