"""A process with an engine, or a parameter server, that forks: run by test_forked.py in a host's network namespace.

Standard input: the AgentConfig as JSON. Arguments: what the child does, and the back end. Prints "good" when everything
was as it should be.
"""

from __future__ import annotations

import atexit
import os
import sys
from pathlib import Path

from controlplane.common.agentconfig import AgentConfig
from ps_server.server import Server
from worker_agent.engine import Engine
from worker_agent.errors import AgentError


def sockets() -> int:
    """Return the number of UDP sockets on our ports in this network namespace."""
    udp = Path("/proc/net/udp").read_text().splitlines()[1:]
    return sum(line.split()[1].split(":")[1].startswith("5") for line in udp)


def descriptors() -> set[str]:
    """Return the open file descriptors of this process that are no files."""
    found = set()
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            found.add(os.readlink(f"/proc/self/fd/{descriptor}"))
        except OSError:
            continue  # This is the descriptor that lists them.
    return {one for one in found if one.startswith(("socket:", "anon_inode:"))}


def lingering_child(agent: Engine | Server, before: set[str]) -> None:
    """Check that a child that outlives its parent's engine keeps no socket open: the kernel has none once the parent
    closes.
    """
    reader, writer = os.pipe()
    ready, tell = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writer)
        more = descriptors() - before
        os.write(tell, b"!" if more else b".")
        os.read(reader, 1)  # This waits until the parent ends.
        os._exit(0)
    assert os.read(ready, 1) == b".", "the child has the engine's descriptors"
    assert sockets() > 0
    agent.stats()
    agent.close()
    assert sockets() == 0, "the child keeps them"
    os.close(writer)
    assert os.waitpid(child, 0)[1] == 0


def ending_child(agent: Engine | Server) -> None:
    """Check that a child ends as any Python process does, with its exit functions, and that the parent goes on."""
    child = os.fork()
    if child == 0:
        try:
            agent.stats()
        except AgentError as error:
            assert f"process {os.getppid()}" in str(error), error
        else:
            os._exit(3)
        agent.close()
        atexit._run_exitfuncs()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert status == 0, f"the child ended with status {status}"
    agent.stats()
    agent.close()


def loader_child(agent: Engine | Server) -> None:
    """Check a DataLoader with workers, which multiprocessing forks."""
    import multiprocessing

    import torch
    from torch.utils.data import DataLoader

    multiprocessing.set_start_method("fork")
    loader = DataLoader(torch.arange(8), batch_size=2, num_workers=2)  # type: ignore[arg-type, var-annotated]
    assert sum(int(batch.sum()) for batch in loader) == 28
    agent.stats()
    agent.close()


def main() -> None:
    what = sys.argv[1]
    config = AgentConfig.from_json(sys.stdin.read())
    before = descriptors()
    make = Engine if config.role == "worker" else Server
    agent = make(config, "data0")  # type: ignore[operator]
    if what == "linger":
        lingering_child(agent, before)
    elif what == "end":
        ending_child(agent)
    else:
        loader_child(agent)
    print("good")


if __name__ == "__main__":
    main()
