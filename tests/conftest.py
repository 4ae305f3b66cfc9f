"""Settings that all tests share, and the list of essential tests that ``pytest -m quick`` (``make quick``) runs in
under two minutes.
"""

import os
import signal
from pathlib import Path

import pytest
from hypothesis import settings

from tests.support.examples import chosen_part

# Several files run at a time: numerical libraries that share the processors out among threads of their own, in each of
# the processes, make all of them wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Properties are tried on the same examples in every run, unless $INART_EXAMPLES asks for more of them.
settings.register_profile("inart", derandomize=chosen_part() is None)

# The essential tests by file below tests/: all tests of the file, or those whose names begin with one of these
# prefixes. They are, for each part of the system, the tests that fail first when something is wrong;
# `test_essentials.py` fails when a name here does not exist.
ALL = ("",)
QUICK: dict[str, tuple[str, ...]] = {
    "test_essentials.py": ALL,
    "controlplane/test_topology_job_plan.py": ALL,
    "controlplane/test_strategies.py": ("test_the_papers_example", "test_every_plan_holds_and_ours_is_best"),
    "controlplane/test_rules.py": ALL,
    "model/test_search.py": ALL,
    "p4/test_artifacts.py": ALL,
    "p4/test_recorded.py": ALL,
    "../softswitch/tests/dataplane/test_recorded.py": ALL,
    "../softswitch/tests/p4runtime/test_tables.py": ALL,
    "hosts/test_wire.py": ALL,
    "hosts/test_fixedpoint.py": ALL,
    "hosts/test_allreduce.py": ALL,
    "deploy/test_roster.py": ALL,
    "deploy/test_difference.py": ALL,
    "deploy/test_deploy.py": ALL,
    "emulation/test_allreduce.py": ("test_sums_are_right", "test_switch_reboots_in_the_middle"),
    "hook/test_training.py": ("test_training_with_the_hook_equals_training_without",),
    "simulate/test_plans.py": ALL,
    "wan/test_plans.py": ALL,
    "tofino/test_entries.py": ALL,
}

# Files that take long: they come first, so that at the end no processor is idle while another one runs a long file.
LONG = (
    "emulation/test_late_ranks.py", "emulation/test_failures.py", "emulation/test_lost_agents.py",
    "emulation/test_allreduce.py", "hook/test_training.py", "emulation/test_chaos.py", "emulation/test_lifetime.py",
    "emulation/test_shared_hosts.py", "emulation/test_soak.py", "hook/test_sharded.py", "hook/test_unprivileged.py",
    "hook/test_launchers.py", "hook/test_nodes.py", "emulation/test_culprits.py", "emulation/test_torchrun.py",
    "overlay/test_emulated.py", "install/test_wheel.py", "evaluation/test_recovery.py",
    "overlay/test_failures_emulated.py", "model/test_search.py", "deploy/test_jobs.py", "wan/test_systems.py",
    "controlplane/test_limits.py", "controlplane/test_planning.py", "native/test_sanitizers.py",
    "outside/test_pytorch.py", "install/test_command.py", "overlay/test_sites_coordinators.py",
    "overlay/test_sites_manual.py", "evaluation/test_sites.py", "native/test_native.py", "overlay/test_policies.py",
    "overlay/test_sites_optimisers.py", "overlay/test_partition.py", "overlay/test_one_round.py",
    "hosts/test_evaluation.py", "overlay/test_sites.py", "hosts/test_collectives.py", "deploy/test_run.py",
)  # fmt: skip


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("inart")  # here, after softswitch's tests have loaded theirs
    config.addinivalue_line("markers", "nightly: a case of which `make test` runs a like one")
    config.addinivalue_line("markers", "quick: one of the essentials (listed in tests/conftest.py)")
    # A shell starts background commands with SIGINT ignored, and child processes inherit that: tests that press Ctrl-C
    # in a child process would wait for ever.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    places = {here / name: place for place, name in enumerate(LONG)}
    items.sort(key=lambda item: places.get(item.path, len(LONG)))
    for item in items:
        names = QUICK.get(os.path.relpath(item.path, here), ())
        if chosen_part() is None and item.get_closest_marker("nightly"):
            item.add_marker(pytest.mark.skip(reason="in `make nightly`; a like case runs here"))
        if item.name.startswith(names):
            item.add_marker("quick")
