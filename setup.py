"""The part of the build that pyproject.toml cannot express: the wheel holds the compiled C libraries.

Training nodes therefore need no compiler. Each library is built for the levels of this kind of processor
(common/native_build.py) and put beside its source; the wheel is for one platform and for every Python 3.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
SHARED = ROOT / "worker_agent" / "native"
"""Folder of the C sources that both agents' engines have in common."""
FLOW_OPTIONS = ("-std=c11", "-O2", "-ffp-contract=off", "-Wall", "-Wextra")


def native_build():
    """Load the module native_build without importing its package: nothing is installed while the wheel is built."""
    spec = importlib.util.spec_from_file_location("native_build", ROOT / "controlplane" / "common" / "native_build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class BuildWithLibraries(build_py):
    """A build step that copies the packages, then compiles the libraries into the copy."""

    def run(self):
        super().run()
        if self.editable_mode:
            return  # The libraries are compiled at first use, as in a source tree.
        builder = native_build()
        for source, options in (
            ("worker_agent/native/worker/worker.c", builder.ENGINES),
            ("ps_server/native/root.c", builder.ENGINES),
            ("overlay/sites/native/fields.c", builder.ENGINE),
            ("controlplane/planner/simulate/flows.c", FLOW_OPTIONS),
        ):
            engine = options is builder.ENGINES
            sources = builder.engine_sources(ROOT / source, SHARED) if engine else ROOT / source
            include = [SHARED] if engine else []
            output = Path(self.build_lib) / Path(source).parent
            output.mkdir(parents=True, exist_ok=True)
            for library in builder.prebuild(sources, output, include=include, options=options):
                print(f"compiled {library.name}")


class PlatformWheel(bdist_wheel):
    """A wheel with the tag py3-none-PLATFORM: ctypes loads the libraries, which do not depend on Python."""

    def finalize_options(self):
        super().finalize_options()
        self.root_is_pure = False

    def get_tag(self):
        return "py3", "none", super().get_tag()[2]


class WithLibraries(Distribution):
    """A distribution with platform-dependent files."""

    def has_ext_modules(self):
        return True


setup(cmdclass={"build_py": BuildWithLibraries, "bdist_wheel": PlatformWheel}, distclass=WithLibraries)
