"""How fast the hosts are, in one run side by side with what they replace.

    python -m evaluation.hosts [--bytes 25M] [--workers 4] [--mbps 200] [--repeat 3] [--no-gloo]

1. Conversions per core: numpy and the C engine, GB/s of float32 tensor (CPU time).
2. One tensor over the workers and one parameter server, all links shaped (tbf, burst 256 KB): summed in the switch (the
   label hub of this package), everything sent to the server, and gloo's own algorithm over TCP on the same links.

Needs root for 2 (network namespaces, which it makes and removes).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack

import numpy as np

from evaluation.hosts.hub import Hub, Star, TreeShape, star
from evaluation.hosts.network import StarNetwork, inside
from evaluation.hosts.numbers import speeds
from p4src.protocol import frame_bytes
from ps_server.server import Server
from worker_agent.engine import Engine

VALUES = 256
BEAT = {"quantise": 0.9, "packetise": 3.3}
UNITS = {"K": 10**3, "M": 10**6, "G": 10**9}


def parse_bytes(text: str) -> int:
    """ "25M" is 25,000,000. Raises ValueError."""
    return int(float(text[:-1]) * UNITS[text[-1].upper()]) if text[-1:].upper() in UNITS else int(text)


def print_speeds() -> None:
    """Part 1."""
    print(f"{'per core, GB/s of float32':32}{'numpy':>8}{'engine':>9}{'to beat':>9}")
    for name, numpy_speed, native_speed in speeds():
        print(f"{name:32}{numpy_speed:8.2f}{native_speed:9.2f}{BEAT.get(name, ''):>9}")


def allreduce_seconds(network: StarNetwork, job: Star, size: int, repeat: int) -> tuple[list[float], str]:
    """Seconds of each repetition, from the first submission to the last completion; and what it cost."""
    with ExitStack() as stack:
        with inside(network.middle):
            hub = Hub(network.ports(), VALUES)
        stack.callback(hub.close)
        job.program(hub)
        hub.start()
        engines = []
        for config in job.workers:
            with inside(network.hosts[config.node]):
                engines.append(stack.enter_context(Engine(config, "data0")))
        for config in job.servers:
            with inside(network.hosts[config.node]):
                stack.enter_context(Server(config, "data0"))
        seconds = []
        for repetition in range(repeat):
            tensors = [
                np.random.default_rng([repetition, worker]).standard_normal(size // 4, dtype=np.float32)
                for worker in range(len(engines))
            ]
            start = time.monotonic()
            works = [engine.allreduce_async(tensor) for engine, tensor in zip(engines, tensors, strict=True)]
            for work in works:
                work.wait()
            seconds.append(time.monotonic() - start)
            if any(tensor.tobytes() != tensors[0].tobytes() for tensor in tensors):
                raise AssertionError("the workers' results differ")
        stats = engines[0].stats()
        cost = stats.cpu_seconds / (stats.packets_sent / 1e6)
        return seconds, f"{cost:.1f} µs CPU a packet sent and answered, {stats.resent} of {stats.packets_sent} resent"


def gloo_seconds(network: StarNetwork, job: Star, size: int, repeat: int) -> list[float]:
    """The same tensor by torch.distributed's gloo backend."""
    first, world = job.workers[0].address, len(job.workers)
    with network.bridged(), ExitStack() as stack:
        processes = []
        quiet = {**os.environ, "TORCH_CPP_LOG_LEVEL": "ERROR"}  # it warns that the hosts have no names
        for config in job.workers:
            command = [sys.executable, "-m", "evaluation.hosts.gloo"]
            command += [str(part) for part in (config.index, world, first, size, repeat)]
            command = ["ip", "netns", "exec", network.hosts[config.node], *command]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=quiet)
            stack.callback(process.kill)
            processes.append(process)
        output, _ = processes[0].communicate(timeout=180 + 30 * repeat)
        if any(process.wait(60) for process in processes):
            raise RuntimeError("gloo failed; its own message is above")
        return json.loads(output)  # type: ignore[no-any-return]


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m evaluation.hosts", description=__doc__.partition("\n")[0])
    parser.add_argument("--bytes", type=parse_bytes, default=25_000_000, help="size of the tensor (25M)")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--mbps", type=float, default=200.0, help="rate of every link (200)")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--no-gloo", action="store_true", help="leave out the comparison with gloo")
    options = parser.parse_args(arguments)
    print_speeds()
    if os.geteuid():
        print("\nThe all-reduce needs root (network namespaces): skipped.")
        return 0
    wire_bits = 8 * frame_bytes(VALUES) * -(-options.bytes // (4 * VALUES))
    seconds = wire_bits / (options.mbps * 1e6)
    print(
        f"\n{options.bytes / 1e6:g} MB, {options.workers} workers, 1 parameter server, links of {options.mbps:g} Mbit/s"
    )
    print(f"{'size / bandwidth (wire bytes)':32}{seconds:8.3f} s")
    shapes = {True: "summed in the switch", False: "all sent to the server"}
    jobs = {
        aggregated: star(
            options.workers,
            trees=[TreeShape(aggregated=aggregated)],
            rate_mbps=options.mbps / (1 if aggregated else options.workers),
        )
        for aggregated in shapes
    }
    agents = jobs[True].workers + jobs[True].servers
    names, addresses = [agent.node for agent in agents], [agent.address for agent in agents]
    with StarNetwork("inart-e", names, addresses, options.mbps) as network:
        for aggregated, name in shapes.items():
            taken, cost = allreduce_seconds(network, jobs[aggregated], options.bytes, options.repeat)
            print(f"{name:32}{statistics.median(taken):8.3f} s   (x{statistics.median(taken) / seconds:.2f}; {cost})")
        if not options.no_gloo:
            taken = gloo_seconds(network, jobs[True], options.bytes, options.repeat)
            print(f"{'gloo':32}{statistics.median(taken):8.3f} s   (x{statistics.median(taken) / seconds:.2f})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
