"""Makes the site of the documentation from docs/*.md (a hook of mkdocs; mkdocs.yml names it).

The README is its first page; CONTRIBUTING.md, CHANGELOG.md and softswitch's own documentation are pages, too. Links to
files that are not pages (sources) are shown as plain text, since the site does not hold these files.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
IMAGES = [path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "softswitch/docs/images").glob("*.png"))]
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "softswitch/docs/guide.md": "softswitch.md",
    "softswitch/docs/from-bmv2.md": "softswitch-from-bmv2.md",
    "softswitch/docs/dataplane.md": "softswitch-dataplane.md",
    "softswitch/docs/internals.md": "softswitch-internals.md",
    **{image: f"images/softswitch-{Path(image).name}" for image in IMAGES},
}
"""The pages from files outside docs/: the file's path from the repository's root, and the page's path on the site."""
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)\s\"]+)\)")
TARGET = re.compile(r"(?<=\]\()([^)#\s\"]+)")
"""The target of a link or an image, without the place in the page."""


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    for name, page in PAGES.items():
        if name in IMAGES:
            files.append(File.generated(config, page, abs_src_path=str(ROOT / name)))
        else:
            files.append(File.generated(config, page, content=_moved((ROOT / name).read_text(), Path(name).parent)))
    return files


def _moved(text: str, folder: Path) -> str:
    """Return the text of a page in `folder` of the repository, with its links changed to start at docs/."""

    def target(found: re.Match[str]) -> str:
        if "://" in found[0]:
            return found[0]
        path = os.path.normpath(folder / found[0])
        return PAGES.get(path) or os.path.relpath(path, "docs")

    return TARGET.sub(target, text)


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    def link(found: re.Match[str]) -> str:
        text, target = found.groups()
        file = target.partition("#")[0]
        if not file or "://" in file:
            return found[0]
        at_root = _resolved(page, file).removeprefix("../")
        if at_root in PAGES:
            up = "../" * len(Path(page.file.src_uri).parent.parts)
            return f"[{text}]({up}{PAGES[at_root]}{target[len(file) :]})"
        if file.endswith(".md") and files.get_file_from_path(_resolved(page, file)) is not None:
            return found[0]
        return text

    return LINK.sub(link, markdown)


def _resolved(page: Page, file: str) -> str:
    """Return the path from docs/ of a link's file, as mkdocs names files."""
    parts: list[str] = list(Path(page.file.src_uri).parent.parts)
    for part in Path(file).parts:
        if part == ".." and parts:
            parts.pop()
        elif part != ".":
            parts.append(part)
    return "/".join(parts)
