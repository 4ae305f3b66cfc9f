"""The committed protobuf code is what protoc makes of inart.proto."""

from __future__ import annotations

import pytest

from controlplane.rpc import generate


def test_generated_code_is_current(tmp_path):
    if generate.usable_protoc() is None:
        pytest.skip("needs protoc 3.20 or 3.21 (Debian 12: protobuf-compiler)")
    generate.generate(tmp_path)
    for name in generate.OUTPUTS:
        assert (tmp_path / name).read_text() == (generate.DIRECTORY / name).read_text(), f"{name}: run the generator"
