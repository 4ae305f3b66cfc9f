"""The distribution as people install it: a wheel in fresh environments, used from another folder, without a
compiler.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from controlplane.common import native_build
from inart.command import PLUGINS, VERBS, main
from tests.support.examples import nightly

ROOT = Path(__file__).resolve().parents[2]
PYTHONS = ("3.11", nightly("3.12"), "3.13", "3.14")
PROTOBUFS = ("4.25.8", nightly("6.33.0"))
"""These are tested besides the newest, which pip takes by itself."""

pytestmark = pytest.mark.timeout(600)  # A package index may be slow, and pip gives up by itself.


def run(*command: object, **options) -> str:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, f"{' '.join(map(str, command))}:\n{done.stdout}{done.stderr}"
    return done.stdout


def environment_of(interpreter: str, folder: Path) -> Path:
    """Make an environment without a pip of its own, which takes seconds to install; returns its Python."""
    run(interpreter, "-m", "venv", "--without-pip", folder)
    return folder / "bin" / "python"


def install(python: Path, *what: object) -> None:
    """Run pip install for this Python; skip the test where there is no package index."""
    words = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--disable-pip-version-check",
             "--no-compile", *what]  # fmt: skip
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False)
    if done.returncode and re.search("Could not find a version|ConnectionError|Max retries", done.stderr):
        pytest.skip(f"the package index does not serve it or is not reachable: {done.stderr.strip()[-300:]}")
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that git has (and does not ignore), as in a fresh clone."""
    source = tmp_path_factory.mktemp("clone")
    for name in run("git", "ls-files", "--cached", "--others", "--exclude-standard", cwd=ROOT).splitlines():
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, source / name)
    return source


@pytest.fixture(scope="module")
def wheel(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the distribution of sources, and the wheel from that, as pip and PyPI's tools do. The compiler is told not
    to optimise, which would take half a minute for the twelve libraries.
    """
    folder = tmp_path_factory.mktemp("wheel")
    compiler = folder / "cc"
    compiler.write_text(f'#!/bin/sh\nexec {os.environ.get("CC", "cc")} "$@" -O0\n')
    compiler.chmod(0o755)
    # The installed setuptools builds them: no build environment is downloaded.
    script = f"from setuptools import build_meta as b; print(b.build_sdist({str(folder)!r}))"
    archive = folder / run(sys.executable, "-c", script, cwd=sources).splitlines()[-1]
    run("tar", "xf", archive, "-C", folder)
    source = next(path for path in folder.iterdir() if path.is_dir())
    script = f"from setuptools import build_meta as b; print(b.build_wheel({str(folder)!r}))"
    return (
        folder / run(sys.executable, "-c", script, cwd=source, env=os.environ | {"CC": str(compiler)}).splitlines()[-1]
    )


def interpreter(version: str) -> str:
    """Return an executable of this Python version: on PATH, or pyenv's."""
    pyenv = sorted(Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")).glob(f"versions/{version}.*/bin/python"))
    for candidate in (shutil.which(f"python{version}"), *pyenv):
        if candidate and subprocess.run([candidate, "-c", "import venv, ensurepip"], check=False).returncode == 0:
            return str(candidate)
    return pytest.skip(f"there is no Python {version} with venv here")


USE = """
import inart, worker_agent, ps_server.server, sys
from worker_agent import native_worker
native_worker.library(), ps_server.server.library()
assert "torch" not in sys.modules and "networkx" not in sys.modules
assert inart.connect is worker_agent.connect
print(inart.__version__, inart.__file__)
"""


def use(python: Path, folder: Path, **more: str) -> None:
    """Engines load without a compiler or a cache, and the command answers, in a folder that is not the repository."""
    environment = {"PATH": str(python.parent), "CC": "/nonexistent", "INART_CACHE": "/nonexistent", "HOME": str(folder)}
    environment |= more
    version, where = run(python, "-c", USE, cwd=folder, env=environment).split()
    assert "site-packages" in where
    command = python.parent / "inart"
    assert run(command, "--version", cwd=folder, env=environment) == f"inart {version}\n"
    assert "parameter server" in run(command, "--help", cwd=folder, env=environment)
    assert "--controller" in run(command, "agent", "--help", cwd=folder, env=environment)
    missing = subprocess.run(
        [command, "plan"], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert missing.returncode == 1
    assert "pip install 'inart[control]'" in missing.stderr
    soon = "import sys, worker_agent.__main__ as it; it.WAIT_SECONDS = 3; sys.exit(it.main(sys.argv[1:]))"
    lost = [python, "-c", soon, "allreduce", "--controller", "127.0.0.1:1"]
    answer = subprocess.run(lost, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert "not ready after 3 s: controller at 127.0.0.1:1" in answer.stderr


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the Python of a fresh environment that has the wheel."""
    python = environment_of(sys.executable, tmp_path_factory.mktemp("environment"))
    install(python, wheel)
    return python


def test_wheel_in_a_fresh_environment(environment: Path, tmp_path: Path) -> None:
    use(environment, tmp_path)


@pytest.mark.parametrize("version", PYTHONS)
def test_wheel_with_another_python(wheel: Path, tmp_path: Path, version: str) -> None:
    if version == f"{sys.version_info[0]}.{sys.version_info[1]}":
        pytest.skip("this is the Python of the tests")
    python = environment_of(interpreter(version), tmp_path / "venv")
    install(python, wheel)
    use(python, tmp_path)


@pytest.mark.parametrize("protobuf", PROTOBUFS)
def test_wheel_beside_an_older_protobuf(environment: Path, tmp_path: Path, protobuf: str) -> None:
    install(environment, "--no-deps", "--target", tmp_path / "older", f"protobuf=={protobuf}")
    use(environment, tmp_path, PYTHONPATH=str(tmp_path / "older"))
    shown = "import google.protobuf; print(google.protobuf.__version__)"
    assert run(environment, "-c", shown, env={"PYTHONPATH": str(tmp_path / "older")}) == f"{protobuf}\n"


def test_the_wheel_of_the_sdist_has_all_that_the_clone_would_install(sources: Path, wheel: Path) -> None:
    """What a build in the clone copies into a wheel (beside the libraries that it compiles) is in the wheel, which was
    built from the sdist."""
    script = ("from setuptools import setup; setup(script_args=['--quiet', 'build_py', '--build-lib', 'copied'], "
              "cmdclass={})")  # fmt: skip
    run(sys.executable, "-c", script, cwd=sources)
    copied = {path.relative_to(sources / "copied").as_posix() for path in (sources / "copied").rglob("*")
              if path.is_file()}  # fmt: skip
    listed = run(sys.executable, "-m", "zipfile", "-l", wheel).splitlines()
    names = {line.split()[0] for line in listed}
    assert copied <= names, sorted(copied - names)
    assert all(name.endswith(".so") or ".dist-info/" in name for name in names - copied - {"File"}), names - copied
    assert {"inart/py.typed", "worker_agent/py.typed", "p4src/artifacts/v1model-256/inart.json"} <= names
    assert {"controlplane/service/web/static/page.js", "controlplane/service/web/static/page.html"} <= names


def test_every_verb_has_its_module(capsys: pytest.CaptureFixture[str]) -> None:
    for name, verb in (VERBS | PLUGINS).items():
        if verb.extra == "emulation":
            pytest.importorskip("mininet", reason="mininet is not installed")
        with pytest.raises(SystemExit) as ended:
            main([name, "--help"])
        assert ended.value.code == 0
        assert "usage:" in capsys.readouterr().out


def test_unknown_verbs_are_refused_with_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fly"]) == 2
    assert "no verb 'fly'" in (said := capsys.readouterr().err)
    assert all(f"  {name} " in said for name in VERBS) and all(name in said for name in PLUGINS)


SOURCE = "int answer(void) { return %d; }\n"


def test_a_library_of_the_wheel_serves_only_the_source_that_it_was_made_from(tmp_path, monkeypatch) -> None:
    source = tmp_path / "part.c"
    source.write_text(SOURCE % 1)
    made = native_build.prebuild(source, tmp_path)
    assert native_build.build(source) in made
    monkeypatch.setenv("INART_CACHE", str(tmp_path / "cache"))
    source.write_text(SOURCE % 2)
    assert native_build.build(source) not in made
    assert native_build.load(source).answer() == 2


def test_a_library_for_a_better_processor_is_left_alone(tmp_path, monkeypatch) -> None:
    source = tmp_path / "part.c"
    source.write_text(SOURCE % 1)
    monkeypatch.setattr(native_build.platform, "machine", lambda: "x86_64")
    name = native_build.prebuilt_name
    for level, _ in native_build.LEVELS["x86_64"]:
        (tmp_path / name(source, [], native_build.ENGINE, level)).touch()
    chosen = {}
    for features in ("sse2", " ".join(native_build.V3), " ".join(native_build.V4)):
        monkeypatch.setattr(native_build, "cpu_features", lambda features=features: f"flags : {features}")
        chosen[features] = native_build.build(source).name
    levels = [re.match("part-(x86-64(?:-v[34])?)-", path)[1] for path in chosen.values()]
    assert levels == ["x86-64", "x86-64-v3", "x86-64-v4"]
