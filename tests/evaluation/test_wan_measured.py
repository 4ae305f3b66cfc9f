"""Reading and reporting the results of earlier measurements."""

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
    assert wan == "| b4 | wan | 4 | 1.10 | 1.00 | 1.10 | 1.12 (1.00 to 1.25) | - | - | 50% |"
    assert star.endswith("| 3.0 | - | 50% |")
    assert picture.stat().st_size > 1000


def test_each_networks_column_names_disagreeing_results(tmp_path, capsys):
    # The median of the measured and the median of the simulated values are different tasks, so their ratio says nothing
    # about the network.
    unequal = {"per_round_s": [1.0, 2.0, 9.0, 9.9], "simulated_per_round_s": [1.0, 2.0, 3.0, 9.9]}
    rows = [
        ROW | unequal | {"system": "opr", "target_s": 8.0, "simulated_target_s": 7.9},
        ROW | {"per_round_s": [1.2], "simulated_per_round_s": [1.0], "network": "aws"},
        ROW | {"per_round_s": [], "simulated_per_round_s": [], "network": "aws", "system": "star"},
    ]
    (tmp_path / "a.json").write_text(json.dumps(rows))
    assert main([str(tmp_path / "a.json"), "--wide"]) == 0
    out = capsys.readouterr().out
    assert "| opr | 5.47 / 3.98<br>each 1.00<br>8.0 / 7.9<br>50% |  |" in out
    assert "| wan |  | 1.20 / 1.00<br>each 1.20 **!**<br>- / -<br>50% |" in out
    assert "1 of 2 within 10%: not wan on aws 1.20. 1 to 4 tasks" in out


def test_files_that_do_not_go_together_are_refused(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps([ROW, {"strategy": "wan"}]))
    with pytest.raises(SystemExit):
        main([str(tmp_path / "a.json")])
