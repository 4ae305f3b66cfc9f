"""The stages of a run, in order: build the network, try it, measure each strategy, train."""

import time
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from controlplane.planner.evaluate import evaluate
from controlplane.planner.job import Job
from controlplane.planner.plan import Plan
from controlplane.planner.topology import Topology
from evaluation.bmv2_fattree.results import RATE_TOLERANCE, Report, StrategyResult, Training
from evaluation.bmv2_fattree.settings import Setting, Settings
from evaluation.bmv2_fattree.training import train_both
from p4src.protocol import frame_bytes
from topologies import Emulation, EmulationError, hosts
from topologies.agents import HOSTS, MODULES, JobAgents, Outcome
from topologies.command import Say
from topologies.deployment import Fabric, Service
from topologies.load import Load, LoadMonitor
from topologies.zygote import HostProcess, Zygote

TCP_SECONDS = 2.0
REPEATS = 3  # all-reduces of each model's size, also over gloo; the fastest counts
GLOO_PORT = 29500
ALL_PAIRS_UP_TO = 16  # most hosts of which all pairs are pinged; more are pinged in a ring
READY_SECONDS = 120.0
# The sending rate is measured in an all-reduce that takes this long at least, and in which a tree has this many packets
# on average: half of a shorter one would be its start and its end.
RATE_SECONDS = 3.0
RATE_PACKETS = 100
# A measurement is repeated if the machine was busy or the rate is not the planned one; the last one counts.
RATE_ATTEMPTS = 3
GLOO_MODULES = ("torch.distributed",)  # imported once, for all processes that the zygote forks
HEAVY_MODULES = ("examples.train_digits", "sklearn.datasets", "worker_agent.torch.hook", "torch._dynamo")


def run(settings: Settings, say: Say) -> tuple[Report, Topology, Job]:
    """Run all stages; `say` gets a line per step.

    Raise EmulationError, FabricError, HostFailure and planners' errors.
    """
    started = time.monotonic()
    settings = settings.scaled()
    if settings.scale < 1:
        say(f"rates and gradients times {settings.scale:g}: more would make the CPU the limit of {settings.switch}")
    topology = settings.topology()
    job = settings.job(topology)
    plans = plan_all(settings, topology, say)
    say(f"building {len(topology.switches)} switches ({settings.switch}) and {len(topology.servers)} hosts")
    with ExitStack() as stack:
        emulation = stack.enter_context(Emulation(topology, settings.switch, seed=settings.seed))
        zygote = stack.enter_context(Zygote(emulation, MODULES))
        fabric = stack.enter_context(Fabric(emulation))
        everything = Setting(settings, topology, job, emulation, fabric, zygote, say)
        say("network is up; importing the agents")
        zygote.wait_ready()

        with fabric.serve(plans[0][settings.largest]):
            tcp_mbps = try_network(everything)
        results = [measure(everything, each) for each in plans]
        # A fork of a process with torch takes more of the processor: the agents above are forked from one without.
        say("importing torch")
        heavy = MODULES + (HEAVY_MODULES if settings.trains else GLOO_MODULES)
        everything = replace(everything, zygote=stack.enter_context(Zygote(emulation, heavy)))
        everything.zygote.wait_ready()
        training: Training | None = None
        gloo_seconds = measure_gloo(everything)
        if settings.trains:
            best = max((each[settings.largest] for each in plans), key=lambda plan: plan.rate_mbps)
            with fabric.serve(best) as service:
                training = train_both(everything, service, best)
        elif settings.steps:
            processes = settings.workers * settings.ranks
            say(f"no training: {processes} processes with torch are too many for this experiment")
    report = Report(
        switch=settings.switch,
        topology=describe(settings, topology),
        settings=settings.to_json(),
        strategies=results,
        gloo_seconds=gloo_seconds,
        training=training,
        tcp_mbps=tcp_mbps,
        seconds=time.monotonic() - started,
    )
    return report, topology, job


def plan_all(settings: Settings, topology: Topology, say: Say) -> list[dict[str, Plan]]:
    """Return, for each strategy, a plan for each model's size, as users' jobs get them. This comes before anything is
    built, so that a strategy that cannot plan does not cost a minute.
    """
    plans = []
    for name in settings.strategies:
        each = {model: settings.plan(name, model) for model in settings.model_bytes}
        plan = each[settings.largest]
        bottleneck = evaluate(plan, topology).bottleneck
        trees = ", ".join(f"{len(of.trees)} for {model}" for model, of in each.items())
        say(f"plan {name}: {plan.rate_mbps:.3g} Mbit/s per worker ({settings.largest}), trees {trees}, "
            f"bottleneck {bottleneck.kind.replace('_', ' ')} {bottleneck.name}")  # fmt: skip
        plans.append(each)
    return plans


def describe(settings: Settings, topology: Topology) -> str:
    rate = settings.bandwidth * settings.scale
    width = f"{rate * 0.5:g} to {rate * 1.5:g}" if settings.heterogeneous else f"{rate:g}"
    apart = f"{settings.parameter_servers} parameter servers"
    servers = "a parameter server on each" if settings.parameter_servers is None else apart
    return (
        f"fat-tree k={settings.k} of {len(topology.switches)} switches, {settings.workers} workers and {servers}, "
        f"links of {width} Mbit/s"
    )


def try_network(everything: Setting) -> float:
    """Ping, and send one TCP flow between distant hosts. Return the flow's Mbit/s. Raise EmulationError."""
    emulation, servers = everything.emulation, everything.topology.servers
    pairs = None if len(servers) <= ALL_PAIRS_UP_TO else list(zip(servers, servers[1:] + servers[:1], strict=True))
    lost = emulation.ping(pairs)
    if lost:
        raise EmulationError(f"no ping from {lost[0][0]} to {lost[0][1]} ({len(lost)} of the pairs)")
    source, sink = servers[0], servers[-1]
    address = everything.topology.address(sink)
    receiver = everything.zygote.spawn(sink, f"{HOSTS}:tcp_sink", {"address": address})
    receiver.receive(READY_SECONDS)
    sender = everything.zygote.spawn(source, f"{HOSTS}:tcp_source", {"address": address, "seconds": TCP_SECONDS})
    sender.receive(READY_SECONDS)
    mbps = float(receiver.receive(READY_SECONDS))
    everything.say(f"every ping was answered; TCP from {source} to {sink}: {mbps:.3g} Mbit/s")
    return mbps


def measure(everything: Setting, plans: dict[str, Plan]) -> StrategyResult:
    """Measure all-reduces of made-up gradients by real agents in the hosts. For each model there are several of its
    size with the plan for it, of which the fastest counts (the first of a new process waits for its memory), and for
    the largest model one more for the rate.
    """
    settings, plan = everything.settings, plans[everything.settings.largest]
    outcomes: list[Outcome] = []
    seconds: dict[str, float] = {}
    ingress = 0
    for models in with_one_plan(plans):
        with (
            everything.fabric.serve(plans[models[0]]) as service,
            JobAgents(everything.zygote, service.address, service.plan.job, seed=settings.seed) as agents,
        ):
            agents.ready(READY_SECONDS)
            for model in models:
                rounds = []
                for _ in range(REPEATS):
                    before = _received(everything)
                    rounds.append(agents.allreduce_together(settings.model_bytes[model]))
                    ingress = _received(everything) - before if model == settings.largest else ingress
                outcomes += rounds
                seconds[model] = min(one.mean_seconds for one in rounds)
            if settings.largest in models:
                rate, load, attempts = _measure_rate(everything, agents, service)
                outcomes.append(rate)
            agents.leave(READY_SECONDS)
    worst = max(outcomes, key=lambda one: one.error / max(one.bound, 1e-300))
    result = StrategyResult(
        name=plan.strategy,
        planned_rate_mbps=plan.rate_mbps,
        measured_rate_mbps=rate.rate_mbps,
        rate_measurements=attempts,
        communication_seconds=seconds[settings.largest],
        ps_ingress_bytes=ingress,
        model_seconds={model: seconds[model] for model in settings.model_bytes},
        bottleneck=evaluate(plan, everything.topology).bottleneck.name,
        load=load,
        packets_resent=sum(one.resent for one in outcomes),
        bit_identical=all(one.identical for one in outcomes),
        largest_error=worst.error,
        error_bound=worst.bound,
    )
    everything.say(
        f"{plan.strategy}: measured {result.measured_rate_mbps:.3g} of {plan.rate_mbps:.3g} Mbit/s, "
        f"{result.communication_seconds:.2f} s for {settings.largest}, CPU {load.idle:.0%} idle"
    )
    return result


def with_one_plan(plans: dict[str, Plan]) -> list[list[str]]:
    """Return the models in groups that have the same trees, so that agents join once for each group."""
    groups: list[list[str]] = []
    for model, plan in plans.items():
        same = next((models for models in groups if plans[models[0]].trees == plan.trees), None)
        if same is None:
            groups.append([model])
        else:
            same.append(model)
    return groups


def _received(everything: Setting) -> int:
    """Return the bytes that the parameter servers' interfaces have received so far."""
    return sum(everything.emulation.counters(node).rx_bytes for node in everything.job.parameter_servers)


def _measure_rate(everything: Setting, agents: JobAgents, service: Service) -> tuple[Outcome, Load, int]:
    """Return the all-reduce in which the sending rate was measured, the machine's load at that time, and the number of
    attempts.
    """
    plan = service.plan
    size = rate_bytes(plan, values=service.network.kind.limits.values_per_packet)
    attempts, settled = 0, False
    while not settled and attempts < RATE_ATTEMPTS:
        attempts += 1
        monitor = LoadMonitor(everything.emulation)
        found = agents.allreduce_together(size)
        load = monitor.stop()
        settled = load.network_was_the_limit and abs(found.rate_mbps / plan.rate_mbps - 1) <= RATE_TOLERANCE
    return found, load, attempts


def rate_bytes(plan: Plan, values: int) -> int:
    """Return the size, in bytes, of the all-reduce in which the sending rate is measured. `values` is the number in a
    packet.
    """
    seconds = max(RATE_SECONDS, RATE_PACKETS * len(plan.trees) * frame_bytes(values) * 8e-6 / plan.rate_mbps)
    return int(plan.rate_mbps * 1e6 / 8 * seconds) // 4 * 4


def measure_gloo(everything: Setting) -> dict[str, float]:
    """Measure all-reduces of the same sizes over gloo, on the same network. Return the seconds of the fastest of
    several for each model, as the first ones use connections that have not grown their windows.
    """
    settings, job, emulation = everything.settings, everything.job, everything.emulation
    master = everything.topology.address(job.workers[0])
    workers = [
        everything.zygote.spawn(
            node,
            "evaluation.bmv2_fattree.gloo:gloo",
            {
                "master": master,
                "port": GLOO_PORT,
                "rank": rank,
                "workers": len(job.workers),
                "interface": emulation.interface(node),
                "seed": settings.seed,
            },
        )
        for rank, node in enumerate(job.workers)
    ]
    try:
        everyone(workers)
        seconds: dict[str, float] = {}
        for model, size in settings.model_bytes.items():
            rounds = [max(reply["seconds"] for reply in order(workers, size)) for _ in range(REPEATS)]
            seconds[model] = min(rounds)
        for worker in workers:
            worker.send(None)
        everyone(workers)
    finally:
        for worker in workers:
            worker.end()
    everything.say("gloo: " + ", ".join(f"{s:.2f} s for {model}" for model, s in seconds.items()))
    return seconds


def order(workers: list[HostProcess], size: int) -> list[dict[str, Any]]:
    """Order one operation of `size` bytes on all workers, and return their answers."""
    for worker in workers:
        worker.send({"size": size})
    return everyone(workers, hosts.OPERATION_SECONDS)


def everyone(processes: list[HostProcess], timeout: float = READY_SECONDS) -> list[Any]:
    """Return the next message of each process."""
    return [process.receive(timeout) for process in processes]
