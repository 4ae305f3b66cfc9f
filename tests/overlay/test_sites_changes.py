"""What sites exchange in a round: which tensors, whose change counts, and how much it may change."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from controlplane.planner.strategies.wan.site_contents import Contents
from overlay.core.errors import OverlayError
from overlay.net.site_services import Constant
from overlay.sites import SiteGroup
from overlay.sites.change import Change
from overlay.sites.fragments import Fragment, divided, tensors_of
from overlay.sites.optimisers import DiLoCo, LocalSGD, StreamingDiLoCo
from overlay.sites.packing import pack, scales_of, unpack
from tests.overlay.test_agents import until
from tests.overlay.test_sites import coordinating
from tests.overlay.test_sites_elastic import joined

INFINITY = float("inf")


def ones(model: nn.Module) -> nn.Module:
    for parameter in model.parameters():
        parameter.data.fill_(1.0)
    return model


def at_sites(coordinator, act: Callable[[SiteGroup, str], Any], names: str = "ab") -> list[Any]:
    """Return what act(group, name) returns at each site, all in threads at the same time."""

    def site(name: str) -> Any:
        with joined(coordinator, name) as group:
            return act(group, name)

    with ThreadPoolExecutor(len(names)) as pool:
        return list(pool.map(site, names))


def add(tensor: torch.Tensor, value: float | torch.Tensor) -> None:
    with torch.no_grad():
        tensor.add_(value)


# --- buffers ---


class Masked(nn.Module):
    """A layer with the usual causal mask."""

    def __init__(self, persistent: bool) -> None:
        super().__init__()
        self.layer = ones(nn.Linear(16, 16))
        self.register_buffer("mask", torch.full((8, 8), -INFINITY).triu(1), persistent=persistent)


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("bits", [4, 32])
def test_a_mask_of_infinities_stays_as_it_is_and_changes_no_parameter(bits, persistent):
    def act(group: SiteGroup, name: str) -> Masked:
        model = Masked(persistent)
        outer = LocalSGD(model, group, every=1, bits=bits)
        for _ in range(2):
            add(model.layer.weight, 1.0 if name == "a" else 3.0)
            outer.step()
        return model

    with coordinating(2, probe_seconds=0) as (coordinator, _):
        for model in at_sites(coordinator, act):
            assert torch.equal(model.mask, Masked(True).mask)
            torch.testing.assert_close(model.layer.weight, torch.full((16, 16), 5.0), rtol=0.2, atol=0)


def test_a_buffer_that_begins_with_infinity_is_each_sites_own():
    """An observer's minimum and maximum begin so, and a site cannot do without its own."""

    def act(group: SiteGroup, name: str) -> tuple[float, float]:
        model = ones(nn.Linear(4, 4))
        model.register_buffer("most", torch.tensor([-INFINITY]))
        outer = DiLoCo(model, group, every=1)
        model.most.fill_(ord(name))
        add(model.weight, 1.0)
        outer.step()
        return model.most.item(), model.weight[0, 0].item()

    with coordinating(2, probe_seconds=0) as (coordinator, _):
        (a, moved), (b, other) = at_sites(coordinator, act)
    assert (a, b) == (ord("a"), ord("b")) and moved == other > 1


def test_tensors_that_change_nowhere_are_not_sent():
    def act(group: SiteGroup, name: str) -> int:
        model = ones(nn.Sequential(nn.Linear(4, 4), nn.Linear(300, 300)))
        model.register_buffer("table", torch.ones(100_000))
        model[1].requires_grad_(False)
        outer, before = LocalSGD(model, group, every=1, bits=32), 0
        for step in range(3):
            add(model[0].weight, 1.0)
            if name == "a":
                add(model[0].bias, 1.0)  # sent by both, from the round on in which it changes at one
            outer.step()
            before = before or group.bytes_sent()  # the state has been sent by then
            assert model[0].bias[0] == 1.0 + 0.5 * (step + 1)
        return group.bytes_sent() - before

    with coordinating(2, probe_seconds=0) as (coordinator, log):
        assert max(at_sites(coordinator, act)) < 2000
        assert any("other tensors have changed at other sites" in line for line in log)


def test_a_block_has_values_of_one_tensor_only():
    values = np.concatenate([np.full(100, 1e-6), np.full(1000, 1e6)]).astype(np.float32)
    sizes = (100, 1000)
    scales = scales_of(values, sizes)
    words, _ = pack(values, scales, 1.0, 8, 1, sizes=sizes)
    mean = np.empty_like(values)
    unpack(words, scales, 8, 1, mean, sizes=sizes)
    np.testing.assert_allclose(mean, values, rtol=0.01)


# --- the state that sites share ---


class Frozen(nn.Module):
    """A frozen layer, one that is trained, and a counter; each site begins with other values."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.below, self.above = nn.Linear(8, 8), nn.Linear(8, 4)
        for parameter in self.parameters():
            parameter.data.normal_(generator=generator)
        self.below.requires_grad_(False)
        self.register_buffer("count", torch.tensor(seed))
        self.register_buffer("chosen", torch.tensor([seed == 1, True]))


@pytest.mark.parametrize("kind", [LocalSGD, StreamingDiLoCo])
def test_frozen_parameters_are_shared_and_averaged_as_soon_as_they_are_trained(kind):
    def act(group: SiteGroup, name: str) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        model = Frozen(ord(name) - ord("a") + 1)
        options = {"fragments": 2, "delay": 0, "mixing": 0.0} if kind is StreamingDiLoCo else {}
        outer = kind(model, group, every=2, bits=32, **options)
        joined_with = {key: value.clone() for key, value in model.state_dict().items()}
        for _ in range(2):
            outer.step()
        model.below.requires_grad_(True)
        add(model.below.weight, 1.0 if name == "a" else 3.0)
        for _ in range(2):
            outer.step()
        return joined_with, model.state_dict()

    with coordinating(2, probe_seconds=0) as (coordinator, _):
        (first, last), (first_b, last_b) = at_sites(coordinator, act)
    for key, value in Frozen(1).state_dict().items():
        assert torch.equal(first[key], value) and torch.equal(first_b[key], value), key
        assert torch.equal(last[key], last_b[key]), key
    moved = last["below.weight"] - first["below.weight"]
    torch.testing.assert_close(moved, torch.full((8, 8), 2.0 if kind is LocalSGD else 0.4 * 1.9 * 2.0))


def test_a_site_that_joins_later_takes_all_of_that_and_keeps_its_own_counters():
    with coordinating(1, probe_seconds=0) as (coordinator, _), joined(coordinator, "a") as group:
        model = Frozen(1)
        outer = LocalSGD(model, group, every=1, bits=32)
        add(model.below.weight, 1.0)
        add(model.above.weight, 1.0)
        model.count += 5
        outer.step()
        assert model.count == 6

        def late(group: SiteGroup, _: str) -> Frozen:
            other = Frozen(2)
            LocalSGD(other, group, every=1, bits=32)
            return other

        (other,) = at_sites(coordinator, late, "b")
        for key, value in Frozen(1).state_dict().items():
            moved = value + 1 if key in ("below.weight", "above.weight") else value
            torch.testing.assert_close(other.state_dict()[key], moved)


DIFFERENT: list[tuple[Callable[[str], nn.Module], dict[str, dict[str, Any]], str]] = [
    (lambda name: nn.Linear(4, 4 if name == "a" else 5), {}, r"weight is a parameter of shape \[5, 4\].* \[4, 4\]"),
    (lambda name: nn.Linear(4, 4), {"a": {"every": 2}, "b": {"every": 4}}, "every=4 there, every=2 here"),
    (lambda name: nn.Linear(4, 4), {"b": {"max_change": None}}, "max_change=None there, max_change=10.0 here"),
    (lambda name: nn.Linear(4, 4, bias=name == "a"), {}, "only this site has bias"),
]


@pytest.mark.parametrize(("make", "options", "wanted"), DIFFERENT)
def test_sites_that_begin_with_other_models_or_settings_are_all_told_so(make, options, wanted):
    """At once, and not when a timeout has passed."""

    def act(group: SiteGroup, name: str) -> str:
        with pytest.raises(OverlayError) as error:
            DiLoCo(make(name), group, **options.get(name, {}))
        return str(error.value)

    with coordinating(2, probe_seconds=0) as (coordinator, log):
        words, others = at_sites(coordinator, act)
        assert words.startswith("a: b trains") and others.startswith("b: a trains")
        until(lambda: any("b cannot take part" in line for line in log))
    assert re.search(wanted, words), words


def test_values_that_are_not_sent_are_compared():
    def act(group: SiteGroup, name: str) -> str:
        model = ones(nn.Linear(4, 4))
        model.register_buffer("angles", torch.full((3,), float(ord(name))), persistent=False)
        with pytest.raises(OverlayError) as error:
            DiLoCo(model, group)
        return str(error.value)

    with coordinating(2, probe_seconds=0) as (coordinator, _):
        words, _ = at_sites(coordinator, act)
    assert "other values of the buffer angles" in words and "make it persistent" in words


def test_a_site_with_another_model_does_not_disturb_those_that_train():
    begun, refused = threading.Event(), threading.Event()

    def act(group: SiteGroup, name: str) -> Any:
        if name == "c":
            begun.wait(60)
            with pytest.raises(OverlayError, match=r"[ab] trains another model") as error:
                DiLoCo(nn.Linear(4, 5), group, every=1)
            refused.set()
            return str(error.value)
        model = ones(nn.DataParallel(nn.Linear(4, 4)) if name == "a" else nn.Linear(4, 4))
        outer = DiLoCo(model, group, every=1)
        outer.step()
        begun.set()
        refused.wait(60)
        outer.step()
        return outer.last.sites

    with coordinating(2, probe_seconds=0) as (coordinator, _):
        *trained, words = at_sites(coordinator, act, "abc")
    assert trained == [("a", "b"), ("a", "b")] and words.startswith("c: ")


# --- whose change counts ---


def moved_once(group: SiteGroup, model: nn.Linear, bad: float | None, **options: Any) -> torch.Tensor:
    """Train for four rounds, in the second of which one weight is `bad` at this site."""
    outer = DiLoCo(model, group, every=1, **{"rate": 1.0, "momentum": 0.5, **options})
    for step in range(4):
        add(model.weight, 0.01)
        if step == 1 and bad is not None:
            model.weight.data[0, 0] = bad
        outer.step()
    return model.weight.detach()


@pytest.mark.parametrize("bits", [8, 32])
@pytest.mark.parametrize("bad", [float("nan"), INFINITY])
def test_a_site_whose_change_is_not_finite_has_weight_0_in_that_round(bits, bad):
    def act(group: SiteGroup, name: str) -> torch.Tensor:
        return moved_once(group, ones(nn.Linear(4, 4)), bad if name == "b" else None, bits=bits)

    with coordinating(2, probe_seconds=0) as (coordinator, log):
        a, b = at_sites(coordinator, act)
        assert any(line.startswith("b: round 1: weight has NaN or infinities") for line in log)
        assert coordinator.desk.status()["changes_not_finite"] == 1
    exact = ones(nn.Linear(4, 4))
    reference = torch.optim.SGD([exact.weight], lr=1.0, momentum=0.5, nesterov=True)
    for _ in range(4):
        exact.weight.grad = torch.full((4, 4), -0.01)
        reference.step()
    torch.testing.assert_close(a, exact.weight.detach(), atol=2e-3, rtol=0)
    assert torch.equal(a, b)


def test_a_site_that_is_not_finite_takes_all_fragments_and_goes_on():
    def act(group: SiteGroup, name: str) -> list[bool]:
        model = ones(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)))
        outer, finite = StreamingDiLoCo(model, group, every=4, fragments=2, delay=1, bits=8), []
        for step in range(12):
            add(model[0].weight, 0.01)
            if step == 2 and name == "b":
                for parameter in model.parameters():
                    parameter.data.fill_(float("nan"))
            outer.step()
            finite.append(all(bool(each.isfinite().all()) for each in model.parameters()))
        outer.state_dict()
        return finite

    with coordinating(2, probe_seconds=0) as (coordinator, _):
        a, b = at_sites(coordinator, act)
        assert coordinator.desk.record.counts["not finite"] == 1
    assert all(a) and not any(b[2:4]) and all(b[4:])


@pytest.mark.parametrize("names", ["ab", "abc"])
@pytest.mark.parametrize("bits", [4, 32])
def test_a_change_much_larger_than_those_of_the_others_is_reduced(bits, names):
    def act(group: SiteGroup, name: str) -> torch.Tensor:
        return moved_once(group, ones(nn.Linear(4, 4)), 1e30 if name == "b" else None, bits=bits)

    with coordinating(len(names), probe_seconds=0) as (coordinator, log):
        found = at_sites(coordinator, act, names)
        assert any("b: round 1 is submitted again: the norm of its change (1e+30)" in line for line in log)
        assert coordinator.desk.status()["changes_bounded"] == 1
    assert all(torch.equal(each, found[0]) for each in found)
    norm, share = 0.01 * 4, len(names)
    assert 1.0 < found[0][0, 0] < 1.0 + 0.2 + 2 * 10 * norm / share, "ten times the others' norm, and the momentum"
    assert (found[0][1:] > 1.0).all()


def test_any_norm_is_allowed_if_the_limit_is_turned_off():
    def act(group: SiteGroup, name: str) -> float:
        bad = 1000.0 if name == "b" else None
        return moved_once(group, ones(nn.Linear(4, 4)), bad, bits=32, max_change=None, momentum=0.0)[0, 0].item()

    with coordinating(2, probe_seconds=0) as (coordinator, _):
        assert at_sites(coordinator, act) == pytest.approx([500.5] * 2, rel=1e-3)
    for wrong in (0.0, float("nan"), INFINITY):
        with pytest.raises(ValueError, match="max_change"):
            DiLoCo(nn.Linear(2, 2), None, max_change=wrong)


@pytest.mark.parametrize("bits", [4, 8, 32])
def test_a_site_with_weight_0_keeps_nothing_for_a_later_round(bits):
    def act(group: SiteGroup, name: str) -> list[float]:
        model, found = ones(nn.Linear(4, 4)), []
        outer = LocalSGD(model, group, every=1, bits=bits)
        add(model.weight, 10.0 if name == "b" else 1.0)
        for samples in (float(name == "a"), 1.0):
            outer.step(samples=samples)
            found.append(model.weight[0, 0].item())
        return found

    with coordinating(2, probe_seconds=0) as (coordinator, _):
        a, b = at_sites(coordinator, act)
    assert a == b == pytest.approx([2.0, 2.0], rel=0.1)


def test_tensors_that_the_model_does_not_have_are_refused():
    change = Change({0: np.ones(3, np.float32)}, [3, 2])
    with pytest.raises(OverlayError, match="tensors that this model does not have"):
        change.adapt(Contents(0b100, 1.0))


# --- low precision ---


def test_outer_values_of_a_bfloat16_model_are_not_rounded_to_its_grid():
    def act(group: SiteGroup, name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        model = ones(nn.Linear(64, 64)).to(torch.bfloat16)
        outer = LocalSGD(model, group, every=1, bits=32)
        generator = torch.Generator().manual_seed(ord(name))
        add(model.weight, 0.05 * torch.randn(64, 64, generator=generator))
        outer.step()
        before = outer.fragments[0].outer.copy()
        for _ in range(3):
            outer.step()
        return before, outer.fragments[0].outer, model.weight.detach().float().numpy()

    with coordinating(2, probe_seconds=0) as (coordinator, _):
        (before, after, own), (other, *_) = at_sites(coordinator, act)
    assert np.array_equal(before, after) and np.array_equal(before, other)
    weight = after[: own.size].reshape(own.shape)
    assert not np.array_equal(weight, own) and np.array_equal(torch.from_numpy(weight).bfloat16().float(), own)


def test_what_a_type_cannot_represent_is_in_the_change_with_any_mixing():
    model = ones(nn.Linear(8, 8)).to(torch.bfloat16)
    (tensors,) = divided(tensors_of(model).averaged, 1)
    part = Fragment(tensors)
    part.outer += np.float32(1e-3)  # less than bfloat16 distinguishes at 1
    part.write(mixing=0.5)
    values, _ = part.change(None).sent()
    np.testing.assert_allclose(values, 0.5e-3, rtol=1e-3)  # half of the way to the outer values is still to go
    part.write()
    assert part.change(None).contents == Contents(0, 0.0, part.change(None).contents.reference)


def test_the_constant_part_of_a_state_is_sent_once_to_each_site_and_hashed_once(monkeypatch):
    """Frozen parameters may be most of a model: rounds must not become slower with them."""
    hashed: list[int] = []
    of = Constant.of
    monkeypatch.setattr(Constant, "of", lambda arrays: hashed.append(sum(each.size for each in arrays)) or of(arrays))
    with coordinating(1, probe_seconds=0) as (coordinator, _), joined(coordinator, "a") as group:
        model = ones(nn.Sequential(nn.Linear(4, 4), nn.Linear(50, 50)))
        model[1].requires_grad_(False)
        model.register_buffer("odd", torch.tensor([True, False, True]))  # no whole number of float32 values
        outer, frozen = LocalSGD(model, group, every=1), 4 * 2550 + 3
        for _ in range(5):
            add(model[0].weight, 1.0)
            add(model[0].bias, 1.0)
            outer.step()
        assert hashed == [frozen + 80, frozen], (
            "before the first round, in which two tensors have changed, and after it"
        )
        offered = group.agent.site._offered
        assert offered is not None and offered.data.size < 1000

        def late(group: SiteGroup, _: str) -> nn.Module:
            other = nn.Sequential(nn.Linear(4, 4), nn.Linear(50, 50))
            other.register_buffer("odd", torch.tensor([False, False, False]))
            LocalSGD(other, group, every=1)
            return other

        (other,) = at_sites(coordinator, late, "b")
        assert all(torch.equal(value, other.state_dict()[key]) for key, value in model.state_dict().items())


def test_a_state_that_is_being_sent_does_not_change_in_the_first_round():
    model = ones(nn.Linear(4, 4))
    (tensors,) = divided(tensors_of(model).averaged, 1)
    part = Fragment(tensors)
    sent = [part.outer[place] for place in part.places(moved=False)]
    part.move({0: np.ones(16, np.float32)}, 1.0, 0.0)
    assert all((each == 1).all() for each in sent) and not part.outer[:16].any()
