"""Files of --config."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def config(folder: Path, **tables: dict[str, Any]) -> list[str]:
    """Write a file of these tables into a folder; return the option that names it."""
    lines = []
    for name, settings in tables.items():
        lines += [f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in settings.items())]
    file = folder / "inart.toml"
    file.write_text("\n".join(lines) + "\n")
    return ["--config", str(file)]
