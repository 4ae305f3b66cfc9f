"""Links in the documentation lead to files that there are."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
COMMAND = ("git", "ls-files", "*.md")
PAGES = subprocess.run(COMMAND, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files(page: str) -> None:
    text = re.sub(r"^(```.*?^```|    .*?$)", "", (ROOT / page).read_text(), flags=re.M | re.S)
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        file = target.partition("#")[0]
        if file and "://" not in file and not ((ROOT / page).parent / file).exists():
            broken.append(target)
    assert not broken, f"{page} links to {', '.join(broken)}"
