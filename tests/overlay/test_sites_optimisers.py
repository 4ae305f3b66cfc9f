"""The optimisers for sites when sites fall behind, are restarted, or have several processes or a GPU."""

from __future__ import annotations

import threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import nn

from overlay.core.errors import OverlayError
from overlay.core.site_network import SiteNetwork
from overlay.sites.command import SiteSettings, make_coordinator
from overlay.sites.fragments import Fragment, tensors_of
from overlay.sites.optimisers import DiLoCo, LocalSGD, StreamingDiLoCo
from overlay.sites.pace import Pace
from tests.overlay.site_training import flat, inner_step, make_model, train_rank
from tests.overlay.test_sites import PROCESSES, coordinating
from tests.overlay.test_sites_elastic import joined
from topologies.ports import free_port

MAKING = threading.Lock()


class Trainer:
    """One site, in a thread of the test."""

    def __init__(self, coordinator, name: str, kind=DiLoCo, **options) -> None:
        self.site, self.step = ord(name), 0
        with MAKING:  # PyTorch's random generator is shared by the process.
            self.model = make_model(self.site)
        self.outer = kind(self.model, joined(coordinator, name), **{"every": 2, **options})
        self.inner = torch.optim.SGD(self.model.parameters(), lr=0.05)

    def rounds(self, count: int) -> None:
        wanted = self.outer.round + count
        while self.outer.round < wanted:
            inner_step(self.model, self.inner, self.site, self.step)
            self.step += 1
            self.outer.step()
        self.outer.state_dict()  # Rounds under way end.

    def shared(self) -> np.ndarray:
        return np.concatenate([np.concatenate([part.outer, part.momentum]) for part in self.outer.fragments])


def made(coordinator, names: str, kind=DiLoCo, **options) -> list[Trainer]:
    with ThreadPoolExecutor(len(names)) as pool:
        return list(pool.map(lambda name: Trainer(coordinator, name, kind, **options), names))


def together(trainers: list[Trainer], rounds: int) -> None:
    with ThreadPoolExecutor(len(trainers)) as pool:
        list(pool.map(lambda trainer: trainer.rounds(rounds), trainers))
    assert all(np.array_equal(trainer.shared(), trainers[0].shared()) for trainer in trainers)


@pytest.mark.parametrize(("kind", "options"), [(DiLoCo, {}), (StreamingDiLoCo, {"fragments": 2, "delay": None})])
def test_a_site_that_is_behind_takes_the_others_model_and_goes_on(kind, options):
    with coordinating(3, probe_seconds=0, patience=0.3) as (coordinator, _):
        a, b, slow = made(coordinator, "abc", kind, **options)
        together([a, b], 3)
        before, last = slow.outer.round, slow.outer.last
        slow.rounds(1)  # The slow site's own round is refused; it has caught up then.
        assert last is None and slow.outer.last.sites == (), "no mean has its values"
        assert before == 0 and slow.outer.round == a.outer.round >= 3
        assert np.array_equal(slow.shared(), a.shared())
        together([a, b, slow], 2)
        assert set(a.outer.last.sites) == set("abc")


def test_a_run_goes_on_from_its_checkpoints_as_if_it_had_not_ended():
    def trained(rounds: int, checkpoints: list | None) -> tuple[list[Trainer], list]:
        with coordinating(2, probe_seconds=0) as (coordinator, _):
            if checkpoints is None:
                trainers = made(coordinator, "ab")
            else:
                with ThreadPoolExecutor(2) as pool:
                    resumed = [pool.submit(Trainer, coordinator, "ab"[k], checkpoint=checkpoints[k]) for k in (0, 1)]
                    trainers = [each.result(60) for each in resumed]
                for trainer in trainers:
                    trainer.step = trainer.outer.steps
            together(trainers, rounds)
            return trainers, [trainer.outer.state_dict() for trainer in trainers]

    whole, _ = trained(4, None)
    _, checkpoints = trained(2, None)
    again, _ = trained(2, checkpoints)
    assert [trainer.outer.round for trainer in (*whole, *again)] == [4] * 4
    for one, other in zip(whole, again, strict=True):
        assert np.array_equal(one.shared(), other.shared())
        np.testing.assert_array_equal(flat(one.model), flat(other.model))


def test_models_that_cannot_be_divided_are_refused():
    frozen = nn.Linear(2, 2)
    for parameter in frozen.parameters():
        parameter.requires_grad = False
    with coordinating(1, probe_seconds=0) as (coordinator, _):
        group = joined(coordinator, "a")
        with pytest.raises(OverlayError, match="no parameters to train"):
            DiLoCo(frozen, group)
        with pytest.raises(OverlayError, match="cannot be divided into 9 fragments"):
            StreamingDiLoCo(nn.Linear(2, 2), group, fragments=9)
        with pytest.raises(ValueError, match="too few for 9 fragments"):
            StreamingDiLoCo(nn.Linear(2, 2), group, fragments=9, every=8)


@pytest.mark.parametrize("rank", [0, 1])
def test_processes_of_torchrun_that_do_not_know_each_other_are_told_so(monkeypatch, rank):
    """Without it the first process would train with the other sites, and its own site's others would not hear of it."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    wrong = pytest.raises(OverlayError, match=r"torchrun has started 2 .*call torch.distributed.init_process_group")
    with coordinating(1, probe_seconds=0) as (coordinator, _), joined(coordinator, "a") as group, wrong:
        DiLoCo(nn.Linear(2, 2), group if rank == 0 else None)


def test_a_site_alone_trains_as_the_paper_has_it_for_one():
    with coordinating(1, probe_seconds=0) as (coordinator, _):
        (alone,) = made(coordinator, "a")
        together([alone], 2)
        assert alone.outer.last.sites == ("a",) and alone.outer.momentum == 0.9


@pytest.mark.parametrize("names", ["a", "ab"])
@pytest.mark.parametrize(("kind", "bits"), [(DiLoCo, 8), (DiLoCo, 32), (LocalSGD, 32), (StreamingDiLoCo, 4)])
def test_synchronise_returns_and_changes_nothing_if_no_site_has_trained_meanwhile(kind, bits, names):
    with coordinating(len(names), probe_seconds=0) as (coordinator, _):
        options = {"fragments": 1, "delay": 0} if kind is StreamingDiLoCo else {}
        trainers = made(coordinator, names, kind, bits=bits, **options)
        together(trainers, 2)
        before = [trainer.shared().copy() for trainer in trainers]
        with ThreadPoolExecutor(len(trainers)) as pool:
            list(pool.map(lambda trainer: trainer.outer.synchronise(), trainers))
        for trainer, shared in zip(trainers, before, strict=True):
            assert trainer.outer.round == trainers[0].outer.round and set(trainer.outer.last.weights) == {0.0}
            np.testing.assert_array_equal(trainer.shared(), shared)
        together(trainers, 1)
        assert set(trainers[0].outer.last.sites) == set(names)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_parameters_on_a_gpu_travel_over_pinned_memory():
    model = make_model(0).cuda().to(torch.bfloat16)
    part = Fragment([each for each in tensors_of(model).averaged if each.trained])
    wanted = torch.cat([parameter.detach().float().reshape(-1) for parameter in model.parameters()])
    assert np.array_equal(np.concatenate(part.read(part.tensors)), wanted.cpu().numpy())
    assert part.host.is_pinned()
    part.outer += 1
    part.write()
    found = torch.cat([parameter.detach().float().reshape(-1) for parameter in model.parameters()])
    assert torch.equal(found, (wanted + 1).bfloat16().float())


def test_a_site_with_several_processes():
    with coordinating(2, probe_seconds=0.05) as (coordinator, _), ProcessPoolExecutor(3, PROCESSES) as pool:
        site = {"INART_COORDINATOR": f"127.0.0.1:{coordinator.address[1]}", "INART_SITE_LISTEN": "127.0.0.1:0"}
        torchrun = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        running = [pool.submit(train_rank, site | torchrun | {"INART_SITE": "paris", "RANK": rank}) for rank in "01"]
        running.append(pool.submit(train_rank, site | {"INART_SITE": "tokyo"}))
        one, two, other = (each.result(300) for each in running)
    assert np.array_equal(one, two)
    assert not np.array_equal(one, flat(make_model(0))) and np.isfinite(other).all()


def test_the_delay_that_is_planned_follows_the_network(monkeypatch):
    """Links that carry a round in a second or two at first, and in a few milliseconds then: sites send at the rates of
    the plan. Steps count as ten milliseconds each: on a busy machine they take much longer, and few of them would fit
    into a slow round.
    """

    def big(_: int) -> nn.Module:
        return nn.Sequential(nn.Linear(12, 2000), nn.Tanh(), nn.Linear(2000, 3))

    monkeypatch.setattr("tests.overlay.test_sites_optimisers.make_model", big)
    stepped = Pace.stepped
    monkeypatch.setattr(Pace, "stepped", lambda pace, seconds: stepped(pace, 0.01))
    network = SiteNetwork(8192)
    with make_coordinator("127.0.0.1", 0, SiteSettings(2, probe_seconds=0.0), network) as coordinator:
        trainers: list[Trainer] = []

        def delays(mbps: float, rounds: int) -> list[int]:
            for pair in ("ab", "ba"):
                network.told(*pair, mbps)
            together(trainers, rounds)
            return [trainer.outer.pace.delay() for trainer in trainers]

        for pair in ("ab", "ba"):
            network.told(*pair, 1.0)
        trainers += made(coordinator, "ab", StreamingDiLoCo, fragments=1, delay=None, every=300, bits=32)
        slow = delays(1.0, 3)
        fast = slow
        for _ in range(8):  # A round or two may be late because the machine was busy; not all of them are.
            fast = delays(1000.0, 4)
            if min(slow) > 2 * max(fast):
                break
        assert min(slow) > 2 * max(fast), (slow, fast)
        for trainer in trainers:
            trainer.outer.close()
