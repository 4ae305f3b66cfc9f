"""The recipes of examples/recipes, each on nodes with a switch between them: as torchrun would start them.

    python -m tests.outside.recipes            # which of them run here, and beside gloo

Their packages are not in requirements.txt. They may lie in an environment of their own, which this makes (torch and the
like are taken from the present one; DeepSpeed compiles a part of itself, which takes a minute or two):

    python -m tests.outside.recipes --install [FOLDER]

and which is found in $INART_OUTSIDE, or ~/.cache/inart/outside.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

from topologies.ports import free_port

ROOT = Path(__file__).resolve().parents[2]
RECIPES = ROOT / "examples" / "recipes"
PACKAGES = Path(__file__).with_name("packages.txt")
SECONDS = 150
BUILD = "from deepspeed.comm.torch import build_shm_op; build_shm_op()"


def folder() -> Path:
    """Return the folder of the environment with the other projects' packages."""
    return Path(os.environ.get("INART_OUTSIDE") or Path.home() / ".cache" / "inart" / "outside")


def compiled() -> bool:
    """Return whether DeepSpeed finds its compiled part where torch keeps such parts."""
    kept = Path(os.environ.get("TORCH_EXTENSIONS_DIR") or Path.home() / ".cache" / "torch_extensions")
    return any(kept.glob("**/deepspeed_shm_comm.so"))


def interpreter() -> str:
    """Return the Python that has the packages: that environment's where there is one, else this one."""
    there = folder() / "bin" / "python"
    return str(there) if there.exists() else sys.executable


def missing(*modules: str) -> str:
    """Return in words why a recipe cannot run here; empty when it can."""
    code = f"import importlib.util as u; print(*[m for m in {modules!r} if u.find_spec(m) is None])"
    absent = subprocess.run([interpreter(), "-c", code], capture_output=True, text=True, check=True).stdout.split()
    if "deepspeed" in modules and not absent and not compiled():
        return "DeepSpeed is not compiled: python -m tests.outside.recipes --install"
    if not absent:
        return ""
    return f"{', '.join(absent)} is not installed: python -m tests.outside.recipes --install"


def version(package: str) -> str:
    code = f"import importlib.metadata as m; print(m.version({package!r}))"
    return subprocess.run([interpreter(), "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def install(where: Path) -> None:
    """Make an environment that sees this one's packages and has the other projects' beside them."""
    subprocess.run([sys.executable, "-m", "venv", str(where)], check=True)
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    python = str(where / "bin" / "python")
    theirs = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    Path(theirs, "inart-base.pth").write_text(sysconfig.get_path("purelib") + "\n")
    subprocess.run([python, "-m", "pip", "install", "--quiet", "-r", str(PACKAGES)], check=True)
    # Otherwise each rank would compile it and wait for the other.
    subprocess.run([python, "-c", BUILD], check=True)


def run(recipe: str, *arguments: str, agents: list[str], script: Path | None = None) -> list[str]:
    """Run a recipe with a rank for each agent; returns what each wrote to stdout.

    Raises RuntimeError with their output when one fails.
    """
    port = free_port()
    started = []
    for rank, agent in enumerate(agents):
        environment = os.environ | {
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "WORLD_SIZE": str(len(agents)),
            "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "GROUP_RANK": str(rank), "GROUP_WORLD_SIZE": str(len(agents)),
            "TORCHELASTIC_RUN_ID": "outside", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "INART_AGENT": agent,
            "CUDA_VISIBLE_DEVICES": "", "GLOO_SOCKET_IFNAME": "lo", "HF_HUB_OFFLINE": "1",
        }  # fmt: skip
        command = [interpreter(), str(script or RECIPES / f"{recipe}.py"), *arguments]
        started.append(
            subprocess.Popen(
                command, env=environment, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
        )
    said = []
    try:
        for process in started:
            said.append(process.communicate(timeout=SECONDS))
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"{recipe} did not end within {SECONDS} s") from None
    finally:
        for process in started:
            if process.poll() is None:
                process.kill()
                process.communicate()
    for process, (_, errors) in zip(started, said, strict=True):
        if process.returncode:
            raise RuntimeError(f"{recipe}: exit status {process.returncode}\n{errors[-4000:]}")
    return [output for output, _ in said]


def losses(output: str) -> list[float]:
    """Return the last line that a recipe prints."""
    return json.loads([line for line in output.splitlines() if line.startswith("[")][-1])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.outside.recipes", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--install", nargs="?", const=folder(), type=Path, metavar="FOLDER", help="make one")
    arguments = parser.parse_args()
    if arguments.install is not None:
        install(arguments.install)
        return 0
    from tests.outside.network import Nodes
    from tests.outside.test_recipes import NEEDS

    with Nodes(2) as nodes:
        for recipe, modules in NEEDS.items():
            if why := missing(*modules):
                print(f"{recipe}: {why}")
                continue
            before = nodes.added()
            mine, theirs = (losses(run(recipe, name, agents=nodes.agents)[0]) for name in ("inart", "gloo"))
            error = max(abs(a - b) / abs(b) for a, b in zip(mine, theirs, strict=True))
            versions = ", ".join(f"{module} {version(module)}" for module in modules)
            print(
                f"{recipe} ({versions}): {len(mine)} losses, largest difference from gloo {error:.1e}, "
                f"{nodes.added() - before} chunks through the switch",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
