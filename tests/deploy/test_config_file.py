"""The file of --config: what may stand in it, and what is said of anything else."""

from __future__ import annotations

from pathlib import Path

import pytest

from controlplane.cli.deploy import main as deploy
from controlplane.common.config_file import ConfigFile, ConfigFileError, read_config

WHOLE = """
[switches]
artifacts = "v1model-64"
bridge = true
cpu_port = 320

[controller]
quotas = "quotas.json"
beside = 25
tokens_listen = "0.0.0.0:9601"
store = "etcds://e1:2379/mine"
store_credentials = "/etc/inart/store"
name = "first"
takeover_after = 4.5

[agent]
mode = "600"
group = "trainers"
"""


def test_every_setting_is_read_and_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    file = tmp_path / "inart.toml"
    file.write_text(WHOLE)
    read = read_config(file)
    assert (read.switches.artifacts, read.switches.bridge, read.switches.cpu_port) == ("v1model-64", True, 320)
    own = read.controller
    assert (own.quotas, own.store_credentials) == (tmp_path / "quotas.json", Path("/etc/inart/store"))
    assert (own.beside, own.takeover_after, own.name) == (25, 4.5, "first")
    assert (own.tokens_listen, own.store) == ("0.0.0.0:9601", "etcds://e1:2379/mine")
    assert (read.agent.mode, read.agent.group) == ("600", "trainers")
    file.write_text('[switches]\nartifacts = "build/v1model-8"\n')
    assert read_config(file).switches.artifacts == str(tmp_path / "build/v1model-8")
    file.write_text("")
    assert read_config(file) == ConfigFile()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[switches", "is not TOML"),
        ("[switch]\n", "unknown table 'switch'; did you mean switches?"),
        ("bridge = true\n", "unknown table 'bridge'; known are switches, controller, agent"),
        ("agent = 1\n", "agent is a table: write [agent]"),
        ("[controller]\nquota = 'x'\n", "[controller]: unknown setting 'quota'; did you mean quotas?"),
        ("[agent]\nbridge = true\n", "[agent]: unknown setting 'bridge'"),
        ("[switches]\nbridge = 1\n", "[switches] bridge must be true or false, got 1"),
        ("[switches]\ncpu_port = true\n", "[switches] cpu_port must be a whole number, got True"),
        ("[switches]\nartifacts = 64\n", "[switches] artifacts must be a program's name or folder in quotes, got 64"),
        (
            "[switches]\ncpu_port = 3\n",
            "[switches]: cpu_port is a port that the switch has, 0 to 511, and needs bridge",
        ),
        ("[switches]\nbridge = true\ncpu_port = 512\n", "0 to 511"),
        ("[controller]\nquotas = ['a']\n", "[controller] quotas must be a path in quotes, got ['a']"),
        ("[controller]\nbeside = '25'\n", "[controller] beside must be a number, got '25'"),
        ("[controller]\nbeside = 0\n", "beside is a percentage of each link, above 0 and at most 100, got 0"),
        ("[controller]\nbeside = nan\n", "beside is a percentage"),
        ("[controller]\nbeside = 101\n", "got 101"),
        ("[controller]\ntakeover_after = 0.1\n", "takeover_after is 0.2 to 600 seconds, got 0.1"),
        ("[controller]\nname = 'two words'\n", "name is one word, got 'two words'"),
        ("[agent]\nmode = 660\n", "[agent] mode must be a text in quotes, got 660"),
        ("[agent]\nmode = '999'\n", "mode is permissions in octal"),
        ("[agent]\nmode = '1777'\n", "mode is permissions in octal"),
    ],
)
def test_anything_else_is_refused_with_the_place_and_what_it_must_be(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "inart.toml"
    file.write_text(text)
    with pytest.raises(ConfigFileError) as refused:
        read_config(file)
    assert str(file) in str(refused.value) and said in str(refused.value)


def test_a_file_that_cannot_be_read_is_a_wrong_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    for name in ("nosuch", "binary"):
        with pytest.raises(SystemExit) as end:
            deploy(["--topology", "testbed", "--job", "ps=1", "--dry-run", "--config", str(tmp_path / name)])
        assert end.value.code == 2
        assert f"argument --config: cannot read {tmp_path / name}: " in capsys.readouterr().err
