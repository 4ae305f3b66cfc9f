"""The example's data sets: CIFAR-100 in the format of its python version's files, with generated pictures."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from examples import train_digits, train_gpt
from examples.train_digits import cifar100, digits, make_model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    generator = np.random.default_rng(0)
    for name, count in (("train", 40), ("test", 10)):
        content = {
            "filenames": [f"{i}.png" for i in range(count)],
            "data": generator.integers(0, 256, (count, 3072), dtype=np.uint8),
            "fine_labels": generator.integers(0, 100, count).tolist(),
            "coarse_labels": [0] * count,
        }
        (tmp_path / name).write_bytes(pickle.dumps(content, protocol=2))
    return tmp_path


def test_cifar100_in_the_layout_of_its_files(folder):
    data = cifar100(folder)
    assert data.train_images.shape == (40, 3, 32, 32)
    assert data.test_images.shape == (10, 3, 32, 32)
    assert data.classes == 100
    with open(folder / "test", "rb") as file:
        raw = pickle.load(file, encoding="latin1")
    assert data.test_labels.tolist() == raw["fine_labels"]
    # Channels come first, then rows of pixels: value 1024 of a picture is the first of its second channel.
    difference = data.test_images[0, 1, 0, 0] - data.test_images[0, 0, 0, 1]
    assert float(difference) == pytest.approx((int(raw["data"][0, 1024]) - int(raw["data"][0, 1])) / 255, abs=1e-6)
    assert abs(float(data.train_images.mean())) < 1e-6
    assert make_model(data, 8)(data.train_images[:2]).shape == (2, 100)


def test_broken_cifar100_says_which_file(folder):
    (folder / "test").write_bytes(b"not a pickle")
    with pytest.raises(SystemExit, match="test is not a file of CIFAR-100's python version"):
        cifar100(folder)
    (folder / "test").unlink()
    with pytest.raises(SystemExit, match="No such file"):
        cifar100(folder)


def test_digits_split_without_overlap():
    data = digits()
    assert len(data.train_labels) + len(data.test_labels) == 1797
    assert data.classes == 10
    assert torch.isfinite(data.train_images).all()


@pytest.mark.parametrize("program", [train_digits, train_gpt])
def test_a_report_that_could_not_be_written_is_refused_before_the_training(program, tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setattr(program, "train", lambda arguments: pytest.fail("it trains"))
    file = tmp_path / "missing" / "report.json"
    with pytest.raises(SystemExit) as ended:
        program.main(["--output", str(file)])
    assert ended.value.code == 2 and f"there is no folder {file.parent}" in capsys.readouterr().err
    monkeypatch.setenv("RANK", "1")
    assert program.make_parser().parse_args(["--output", str(file)]).output == file, "only rank 0 writes"


def test_the_text_has_the_size_that_the_pages_say():
    """Python's documentation grows by a few percent from version to version."""
    assert 400_000 < len(train_gpt.text()) < 560_000
    assert (
        "470 KB" in train_gpt.__doc__
        and "470 KB" in (Path(train_gpt.__file__).parents[1] / "docs/training.md").read_text()
    )
