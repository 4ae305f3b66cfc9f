"""What was measured, read again."""

import json

import pytest

from evaluation.wan.measured import main

ROW = {
    "network": "b4", "system": "wan", "task_s": 1.0, "simulated_task_s": 0.8, "target_s": None,
    "simulated_target_s": None, "cpu_idle": 0.5, "per_round_s": [1.0, 1.2],
    "simulated_per_round_s": [0.8, 1.2],
}  # fmt: skip


def test_seeds_of_a_system_are_taken_together(tmp_path, capsys):
    other = ROW | {"task_s": 1.4, "simulated_task_s": 1.2}
    (tmp_path / "a.json").write_text(json.dumps([ROW]))
    (tmp_path / "b.json").write_text(json.dumps([other, ROW | {"system": "star", "target_s": 3.0}]))
    picture = tmp_path / "deep" / "x.png"
    assert main([str(tmp_path / "a.json"), str(tmp_path / "b.json"), "--plot", str(picture)]) == 0
    _, _, wan, star = capsys.readouterr().out.splitlines()
    assert wan == "| b4 | wan | 4 | 1.20 | 1.00 | 1.20 | 1.12 | - | - | 50% |"
    assert star.endswith("| 3.0 | - | 50% |")
    assert picture.stat().st_size > 1000


def test_files_that_do_not_go_together_are_refused(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps([ROW, {"strategy": "wan"}]))
    with pytest.raises(SystemExit):
        main([str(tmp_path / "a.json")])
