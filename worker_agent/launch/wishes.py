"""Reads what a user asks of the network for a job that a cluster's scheduler starts, such as `ps=2,model=100M,share`.

Slurm users write these words into a job's comment (slurm.py), users of Kubernetes into an annotation (kubernetes.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from controlplane.common.numbers import short
from controlplane.common.rpc import inart_pb2 as pb

ELSE = ("gloo", "wait")


class Refused(Exception):
    """The job is not in the network; the message says why."""


@dataclass(frozen=True)
class Wish:
    """The wishes of one job.

    Attributes:
        job: words for `inart job add`.
        waits: whether the job waits where it is refused.
    """

    job: str = ""
    strategy: str = "inart"
    share: bool = False
    waits: bool = False

    def request(self, name: str, tenant: str, hosts: Sequence[tuple[str, Sequence[str]]]) -> pb.AddJobRequest:
        """Return the request for a job of this name on hosts, each given as (name, addresses). Raise Refused for a
        single host.
        """
        if len(hosts) == 1:
            raise Refused("one node has nothing to send through the network")
        words = ",".join(filter(None, [self.job, f"name={name}"]))
        request = pb.AddJobRequest(job=words, strategy=self.strategy, share=self.share, tenant=tenant)
        for host, addresses in hosts:
            request.hosts.add(name=host, addresses=addresses)
        return request


def gets(reply: pb.AddJobReply) -> str:
    """Return in words what a job gets."""
    return f"{short(reply.rate_mbps)} Mbit/s per worker, bottleneck {reply.bottleneck}"


def parse_wish(text: str, where: str) -> Wish:
    """Return the wishes in text such as "ps=2,share,else=wait". Raise Refused for words that are not understood.

    `where` names the place of the words in the message.
    """
    words = [word for word in text.split(",") if word]
    given = dict(word.partition("=")[::2] for word in words)
    other = given.pop("else", ELSE[0])
    strategy = given.pop("strategy", "inart")
    share = given.pop("share", None) is not None
    if other not in ELSE:
        raise Refused(f"else={other} in {where}: it is one of {', '.join(ELSE)}")
    if taken := {"name", "workers"}.intersection(given):
        raise Refused(f"{taken.pop()}= in {where}: the scheduler says which nodes a job has, and its name follows it")
    if given.get("ps") == "workers":  # This is the default.
        del given["ps"]
    return Wish(",".join(f"{name}={value}" for name, value in given.items()), strategy, share, other == "wait")
