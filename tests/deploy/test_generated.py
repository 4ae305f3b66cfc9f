"""The committed protobuf code equals protoc's output for the .proto files."""

from __future__ import annotations

from pathlib import Path

import pytest

from controlplane.common.rpc import generate


@pytest.mark.parametrize("source", generate.SOURCES, ids=lambda source: source.name)
def test_generated_code_is_current(source: Path, tmp_path: Path) -> None:
    if generate.usable_protoc() is None:
        pytest.skip("needs protoc 3.20 or 3.21 (Debian 12: protobuf-compiler)")
    generate.generate(source, tmp_path)
    for name in generate.outputs(source):
        assert (tmp_path / name).read_text() == (source.parent / name).read_text(), f"{name}: run the generator"
