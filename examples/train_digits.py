"""Data-parallel training of a small image classifier; `--hook` is all that in-network aggregation changes.

    torchrun --nproc-per-node 1 --nnodes 4 ... examples/train_digits.py --hook inart --controller HOST:PORT
    torchrun --nproc-per-node 4 examples/train_digits.py --hook gloo

The data are the 1,797 handwritten digits that ship with scikit-learn (8 x 8 pixels), or CIFAR-100 with --cifar100
FOLDER (its python version, with the files train and test). All random numbers come from --seed, so two runs differ only
by how gradients are summed. Rank, world size and master come from the environment, as torchrun sets it;
GLOO_SOCKET_IFNAME names gloo's interface.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


@dataclass(frozen=True)
class Data:
    """Images (N x channels x side x side, float32, mean 0) and labels (N, int64), for training and testing."""

    train_images: torch.Tensor
    train_labels: torch.Tensor
    test_images: torch.Tensor
    test_labels: torch.Tensor
    classes: int


@dataclass
class Report:
    """The report of a run: one number per step, of this rank's part of the batch averaged over all ranks.

    Attributes:
        in_network: whether every step's gradients went through the network's switches.
        falls: how often the job fell back to torch.distributed.
        step_seconds: wall-clock time of each step (forward, backward with the all-reduce, update).
    """

    hook: str
    in_network: bool
    world_size: int
    parameters: int
    losses: list[float] = field(default_factory=list)
    step_seconds: list[float] = field(default_factory=list)
    test_accuracy: float = 0.0
    falls: int = 0


def digits() -> Data:
    """Return scikit-learn's digits; every fifth one is for testing."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    return _split(images.reshape(-1, 1, 8, 8) / 16.0, labels, np.arange(len(labels)) % 5 == 0, 10)


def cifar100(folder: Path) -> Data:
    """Return CIFAR-100 from its python version: pickled dictionaries with the keys data (N x 3072) and fine_labels."""

    def load(name: str) -> tuple[np.ndarray, np.ndarray]:
        try:
            with open(folder / name, "rb") as file:
                content = pickle.load(file, encoding="latin1")
            return content["data"].reshape(-1, 3, 32, 32) / 255.0, np.array(content["fine_labels"])
        except (OSError, KeyError, pickle.UnpicklingError) as error:
            raise SystemExit(f"{folder / name} is not a file of CIFAR-100's python version: {error}") from None

    train, test = load("train"), load("test")
    images, labels = np.concatenate((train[0], test[0])), np.concatenate((train[1], test[1]))
    return _split(images, labels, np.arange(len(labels)) >= len(train[1]), 100)


def _split(images: np.ndarray, labels: np.ndarray, testing: np.ndarray, classes: int) -> Data:
    pixels = torch.from_numpy(images.astype(np.float32))
    pixels -= pixels[torch.from_numpy(~testing)].mean()
    targets = torch.from_numpy(labels.astype(np.int64))
    train, test = torch.from_numpy(~testing), torch.from_numpy(testing)
    return Data(pixels[train], targets[train], pixels[test], targets[test], classes)


def make_model(data: Data, width: int) -> nn.Module:
    """Return a convolutional network; width 32 has about 110,000 parameters on digits."""
    channels, side = data.train_images.shape[1], data.train_images.shape[2]
    return nn.Sequential(
        nn.Conv2d(channels, width, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4 if side <= 8 else 8),
        nn.Flatten(),
        nn.Linear(2 * width * (16 if side <= 8 else 64), 85 if side <= 8 else 256),
        nn.ReLU(),
        nn.Linear(85 if side <= 8 else 256, data.classes),
    )


def report_file(text: str) -> Path:
    """Return the path of the report, which rank 0 writes after all the training: refuse one that it could not write."""
    if os.environ.get("RANK", "0") != "0":
        return Path(text)
    from controlplane.common.command_line import new_file

    return new_file(text)


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hook", choices=("inart", "gloo", "none"), default="inart", help="none: no communication")
    parser.add_argument("--controller", metavar="HOST:PORT", help="default: $INART_CONTROLLER")
    parser.add_argument("--agent", metavar="unix:PATH", help="an `inart agent` of this machine instead")
    parser.add_argument("--node", metavar="NAME", help="default: the node whose address this machine has")
    parser.add_argument("--cifar100", type=Path, metavar="FOLDER", help="train on CIFAR-100 from there")
    parser.add_argument(
        "--bits", type=int, help="bits of a gradient value on the wire: 16, 10 or 8 (default: those of its type)"
    )
    parser.add_argument("--steps", type=int, default=100, help="default: %(default)s")
    parser.add_argument("--batch", type=int, default=32, help="images per rank and step")
    parser.add_argument(
        "--width", type=int, default=32, help="channels of the first layer; parameters grow with its square"
    )
    parser.add_argument("--rate", type=float, default=0.05, help="learning rate")
    parser.add_argument("--bucket-mb", type=float, default=0.25, help="DDP's bucket size")
    parser.add_argument("--seed", type=int, default=0, help="of model and data (default: %(default)s)")
    parser.add_argument("--device", default="cpu", help="cpu, or cuda")
    parser.add_argument("--threads", type=int, default=1, help="of each process")
    parser.add_argument("--output", type=report_file, metavar="FILE", help="where rank 0 writes its report (JSON)")
    return parser


def train(arguments: argparse.Namespace) -> Report:
    """Train with an initialised process group, and return the report. The same arguments and world size give the same
    losses.
    """
    rank, world = dist.get_rank(), dist.get_world_size()
    device = torch.device(arguments.device)
    torch.manual_seed(arguments.seed)
    data = cifar100(arguments.cifar100) if arguments.cifar100 else digits()
    model = make_model(data, arguments.width).to(device)
    report = Report(arguments.hook, False, world, sum(p.numel() for p in model.parameters()))
    ddp = DistributedDataParallel(model, bucket_cap_mb=arguments.bucket_mb)
    state = None
    if arguments.hook == "inart":
        from worker_agent import InArtState, inart_hook

        state = InArtState(arguments.controller, agent=arguments.agent, node=arguments.node, bits=arguments.bits)
        ddp.register_comm_hook(state, inart_hook)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=arguments.rate, momentum=0.9)
    # All ranks have the same order; each takes its part of every batch.
    order = np.random.default_rng(arguments.seed)
    total = world * arguments.batch
    try:
        for step in range(arguments.steps):
            chosen = order.choice(len(data.train_labels), total, replace=total > len(data.train_labels))
            mine = torch.from_numpy(chosen[rank * arguments.batch : (rank + 1) * arguments.batch])
            images, labels = data.train_images[mine].to(device), data.train_labels[mine].to(device)
            started = time.perf_counter()
            with ddp.no_sync() if arguments.hook == "none" else nullcontext():
                loss = nn.functional.cross_entropy(ddp(images), labels)
                optimizer.zero_grad()
                loss.backward()
            optimizer.step()
            report.step_seconds.append(time.perf_counter() - started)
            report.losses.append(loss.item())
            if rank == 0 and (step % 10 == 0 or step == arguments.steps - 1):
                print(f"step {step}: loss {report.losses[-1]:.4f}, {report.step_seconds[-1]:.3f} s", flush=True)
        if state is not None:
            report.in_network, report.falls = state.in_network and not state.falls, state.falls
    finally:
        if state is not None:
            state.close()
    losses = torch.tensor(report.losses, dtype=torch.float64)
    dist.all_reduce(losses)
    report.losses = (losses / world).tolist()
    with torch.no_grad():
        predicted = model(data.test_images.to(device)).argmax(dim=1).cpu()
    report.test_accuracy = (predicted == data.test_labels).double().mean().item()
    return report


def main(argv: Sequence[str] | None = None) -> int:
    arguments = make_parser().parse_args(argv)
    torch.set_num_threads(arguments.threads)
    # Without torchrun, the world has size one.
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "29512")):
        os.environ.setdefault(name, value)
    dist.init_process_group("gloo")
    try:
        report = train(arguments)
        if dist.get_rank() == 0:
            print(
                f"{report.parameters} parameters, hook {report.hook}: loss {report.losses[-1]:.6f}, "
                f"test accuracy {report.test_accuracy:.3f}, {np.mean(report.step_seconds):.3f} s a step"
            )
            if arguments.output is not None:
                arguments.output.write_text(json.dumps(asdict(report), indent=1) + "\n")
    finally:
        dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
