"""Settings that all tests share, and the list of essential tests that ``pytest -m quick`` (``make quick``) runs in
under two minutes.
"""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from softswitch.tests.conftest import signals
from tests.support.examples import chosen_part

__all__ = ["signals"]

# Several files run at a time: numerical libraries that share the processors out among threads of their own, in each of
# the processes, make all of them wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Test processes are forked from one that has asked whether there is a GPU (tests/parallel.py): by this, PyTorch asks
# the driver's library, which leaves them able to use it.
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")

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
    "hook/test_training.py", "emulation/test_allreduce.py", "emulation/test_shared_hosts.py",
    "emulation/test_failures.py", "emulation/test_chaos.py", "emulation/test_lost_agents.py",
    "emulation/test_renewed_epochs.py", "engines/test_engines.py",
    "emulation/test_torchrun.py", "hook/test_sharded.py", "emulation/test_late_ranks.py",
    "emulation/test_lifetime.py", "hook/test_leaving.py", "emulation/test_hosts.py",
    "emulation/test_culprits.py", "hook/test_nodes.py", "emulation/test_mpi.py", "hook/test_tools.py",
    "emulation/test_rails.py", "emulation/test_over_tls.py", "emulation/test_run.py", "emulation/test_migration.py",
    "hook/test_launchers.py", "hook/test_sharing.py", "test_docs.py", "overlay/test_failures_emulated.py",
    "overlay/test_emulated.py", "install/test_wheel.py", "wan/test_systems.py", "evaluation/test_recovery.py",
    "deploy/test_jobs.py",
    "native/test_sanitizers.py", "overlay/test_sites.py",
    "overlay/test_one_round.py", "controlplane/test_limits.py", "overlay/test_sites_optimisers.py",
    "outside/test_pytorch.py", "controlplane/test_host_collectives.py", "hosts/test_forked.py",
    "install/test_command.py", "overlay/test_sites_deputies.py",
    "../softswitch/tests/p4runtime/test_command.py", "tofino/test_entries.py", "tofino/test_system.py",
    "deploy/test_orders.py", "hosts/test_collectives.py", "hosts/test_allreduce.py",
    "controlplane/test_strategies.py", "controlplane/test_planning.py", "hosts/test_evaluation.py",
    "native/test_native.py", "overlay/test_sites_manual.py", "evaluation/test_sites.py", "fuzz/test_fuzz.py",
    "hosts/test_fixedpoint.py", "hosts/test_fields.py", "hosts/test_checkword.py", "deploy/test_run.py",
    "controlplane/test_scale.py", "overlay/test_recovery.py", "evaluation/test_training_sums.py",
    "deploy/test_cabling.py", "deploy/test_pair.py", "controlplane/test_varied_instances.py", "tofino/test_target.py",
    "overlay/test_policies.py", "evaluation/test_softswitch.py", "evaluation/test_collectives.py",
    "evaluation/test_sites_chaos.py", "model/test_search.py", "overlay/test_training.py",
)  # fmt: skip


FORKS = ("hook/", "overlay/test_sites.py", "overlay/test_sites_optimisers.py",
         "overlay/test_training.py", "overlay/test_fig3.py", "evaluation/test_training_sums.py")  # fmt: skip
"""Files whose processes are forked from a server that has imported PyTorch (support/forked.py,
evaluation/crew/fig3.py). Each process of pytest has a server of its own, which takes 6 s of CPU to start: few of them
run these files (parallel.py)."""


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("inart")  # here, after softswitch's tests have loaded theirs
    config.addinivalue_line("markers", "forks: uses the server that processes are forked from")
    config.addinivalue_line("markers", "nightly: a case of which `make test` runs a like one")
    config.addinivalue_line("markers", "quick: one of the essentials (listed in tests/conftest.py)")
    # A shell starts background commands with SIGINT ignored, and child processes inherit that: tests that press Ctrl-C
    # in a child process would wait for ever.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    places = {Path(os.path.normpath(here / name)): place for place, name in enumerate(LONG)}
    items.sort(key=lambda item: places.get(item.path, len(LONG)))
    for item in items:
        name = os.path.relpath(item.path, here)
        names = QUICK.get(name, ())
        if name.startswith(FORKS):
            item.add_marker("forks")
        if chosen_part() is None and item.get_closest_marker("nightly"):
            item.add_marker(pytest.mark.skip(reason="in `make nightly`; a like case runs here"))
        if item.name.startswith(names):
            item.add_marker("quick")


@pytest.fixture(scope="session", autouse=True)
def state_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the state folders of controllers that tests start out of this user's home."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state-home")))
        yield
