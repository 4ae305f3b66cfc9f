"""The line that says of what machine a figure is."""

from __future__ import annotations

import os
import re
import subprocess
import sys

from evaluation import machine


def test_a_figure_says_of_what_machine_it_is() -> None:
    """The line names the processor and its number, and both yardsticks are measured."""
    line = subprocess.run(
        [sys.executable, "-m", "evaluation.machine"], capture_output=True, text=True, check=True
    ).stdout
    assert machine.processor() in line
    assert f"{os.cpu_count()} processors" in line
    measured = re.search(r"copies ([\d.]+) GB/s; a packet over loopback ([\d.]+) µs", line)
    assert measured is not None, line
    assert all(float(each) > 0 for each in measured.groups())
