"""Optimisers for sites far apart: each site trains by itself, and only the change of its model travels, seldom and
small.

    outer = DiLoCo(model, group, every=100, bits=8)
    for batch in data:
        ...                                 # forward, backward, inner.step(), inner.zero_grad(), as ever
        outer.step(samples=len(batch))

All sites hold the same *outer parameters*. A round takes the difference between these and a site's own parameters (the
outer gradient), averages it over the sites, weighted by samples, and moves the outer parameters by it:

- `LocalSGD`: to the mean of the sites' parameters (Stich, 2019).
- `DiLoCo`: with Nesterov momentum (Douillard et al., 2023, Algorithm 1).
- `StreamingDiLoCo`: one fragment of the model at a time, while the site goes on training; the result is mixed in some
  steps later (Douillard et al., 2025, Algorithm 2).

NumPy computes the update in float32, product by product and sum by sum, so that sites with other processors get the
same bits. Floating-point buffers (BatchNorm's means) are averaged like parameters, without momentum. fragments.py says
what happens to the model's other tensors.

A site whose change has NaN or infinities has weight 0 in that round, and takes the outer values for its own. The norm
of a site's change is limited (`max_change`).
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from overlay.core.errors import Behind, Differs, OverlayError
from overlay.net.site_services import Bytes, Constant
from overlay.sites.change import Change
from overlay.sites.description import describe, difference
from overlay.sites.fragments import Fragment, bytes_of, divided, set_bytes, tensors_of
from overlay.sites.group import FLOAT_BITS, Averaged, SiteGroup
from overlay.sites.pace import Pace

STATE_VERSION = 2
HEAD_BYTES = 1 << 20
"""Maximum number of bytes of the first line of a state."""

MAX_CHANGE = 10.0
"""Default of `max_change`."""


@dataclass
class _Pending:
    """A fragment's round that is under way.

    Attributes:
        fragment: number of the fragment.
        due: the step after which its result is mixed in.
        future: done when the outer values have moved.
    """

    fragment: int
    due: int
    future: Future[Averaged]


class StreamingDiLoCo:
    """Averages fragments of the model in turn, while training goes on.

    When the constructor returns, the model is that of the other sites: the state of the site that has done the most
    rounds, checked by digest.

    Args:
        model: on one device, all of it in this process (no FSDP); several processes of one site hold equal models
            (DDP).
        group: the group of `inart.sites.init()`; None in all processes of a site except its first, from which they
            get the results over torch.distributed.
        every: steps in which each fragment is averaged once.
        fragments: number of parts of about equal size into which the model is divided.
        delay: steps between the sending of a fragment and the mixing in of its mean; None for as few as rounds
            take, as measured, so that training does not wait for them (pace.py).
        mixing: the part of a site's own values that it keeps then (alpha; 0 for none).
        rate, momentum: learning rate and momentum of the outer optimiser.
        bits: bits in which a value travels: 32, or 16, 8, 4 with error feedback.
        max_change: maximum norm of a site's change, as a multiple of the median of the other sites' norms: a larger
            change is reduced to it. If no other site has changed, the maximum is the norm of the parameters. None for
            any norm.
        checkpoint: the result of `state_dict`, from an earlier run.

    Attributes:
        last: the mean of the round that has changed the model last; without sites where this site was behind, and
            has taken the others' state.
    """

    def __init__(  # noqa: PLR0913  (options by keyword)
        self,
        model: nn.Module,
        group: SiteGroup | None,
        *,
        every: int = 100,
        fragments: int = 4,
        delay: int | None = 5,
        mixing: float = 0.5,
        rate: float = 0.4,
        momentum: float = 0.9,
        bits: int = 4,
        max_change: float | None = MAX_CHANGE,
        checkpoint: dict[str, Any] | None = None,
    ) -> None:
        if max_change is not None and not 0 < max_change < float("inf"):
            raise ValueError(f"max_change is None or a number above 0, got {max_change}")
        if fragments < 1 or every < fragments:
            raise ValueError(f"every={every} steps are too few for {fragments} fragments: one a step at most")
        if (delay is not None and not 0 <= delay < every) or not 0 <= mixing < 1:
            raise ValueError(f"delay is from 0 to below every={every}, mixing from 0 to below 1, got {delay}, {mixing}")
        self._model, self._group = model, group
        self.every, self.delay, self.mixing = every, delay, mixing
        self.rate, self.momentum, self.bits = rate, momentum, bits
        self._world = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
        _check_processes(group, self._world)
        self.max_change, self._tensors = max_change, tensors_of(model)
        parts = divided(self._tensors.averaged, fragments)
        self.fragments = [Fragment(part) for part in parts]
        self._known_constant: tuple[list[int], Constant] | None = None
        self._fixed = [bytes_of(tensor) for _, tensor in self._tensors.fixed]
        names = "every", "rate", "momentum", "bits", "max_change"
        self._description = describe(self._tensors, parts, {name: getattr(self, name) for name in names})
        self._adopting: set[int] = set()  # fragments whose own values are not finite: the outer ones replace them
        self.steps = self.round = 0
        self._shared_round = 0  # the state that all sites share is before this round; the model may be some behind
        self.samples = 0.0  # all so far; a fragment's weight is the difference since it was sent last
        self.last: Averaged | None = None
        self.pace, self._ended = Pace(fragments, every - 1), 0.0
        self._sent_samples = [0.0] * fragments
        self._pending: list[_Pending] = []
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="inart sites") if group is not None else None
        if checkpoint is not None:
            self._load_checkpoint(checkpoint)
        self._agree(fixed=checkpoint is None)

    # --- for training scripts ---

    def step(self, samples: float = 1.0) -> bool:
        """Count a step of the inner optimiser, after which this has to be called; send and mix in fragments where it is
        time. Return whether the model was changed. Raise OverlayError, at all processes of the site alike.

        Args:
            samples: number of samples on which this site has trained in the step (in all its processes): its weight.
        """
        if self._ended:
            self.pace.stepped(time.monotonic() - self._ended)
        self.steps += 1
        self.samples += samples
        changed = False
        interval = self.every // len(self.fragments)
        if self.steps % interval == 0:
            self._send()
        while self._pending and self._pending[0].due <= self.steps:
            self._finish()
            changed = True
        self._ended = time.monotonic()
        return changed

    def synchronise(self) -> None:
        """Average the next fragment now, and wait for the result (for the end of training, say). The outer values stay
        as they are if no site has trained since the fragment was averaged last.
        """
        self._drain()
        self._send()
        self._drain()

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint needs beside the model's and the inner optimiser's own states. Rounds under way end
        first. All processes of a site call this.
        """
        self._drain()
        return {
            "version": STATE_VERSION, "round": self.round, "steps": self.steps, "samples": self.samples,
            "sent_samples": list(self._sent_samples),
            "outer": [torch.from_numpy(part.outer.copy()) for part in self.fragments],
            "momentum": [torch.from_numpy(part.momentum.copy()) for part in self.fragments],
            "left": [torch.from_numpy(part.left.copy()) for part in self.fragments],
            "rest": [torch.from_numpy(part.rest.copy()) for part in self.fragments],
            "moved": [part.moved for part in self.fragments],
            "model": [torch.from_numpy(part.own()) for part in self.fragments],
            "fixed": [torch.from_numpy(each.copy()) for each in self._fixed],
        }  # fmt: skip

    def close(self) -> None:
        """End the rounds under way, and leave the group."""
        try:
            self._drain()
        finally:
            if self._worker is not None:
                self._worker.shutdown()
            if self._group is not None:
                self._group.close()

    # --- rounds ---

    def _send(self) -> None:
        """Begin the round of the next fragment."""
        index = (self.round + len(self._pending)) % len(self.fragments)
        fragment, round_ = self.fragments[index], self.round + len(self._pending)
        weight, self._sent_samples[index] = self.samples - self._sent_samples[index], self.samples
        future: Future[Averaged] = Future()
        if self._group is not None:
            assert self._worker is not None, "there is one where there is a group"
            change = fragment.change(self.max_change)
            if change.not_finite:
                name, weight = fragment.tensors[change.not_finite[0]].name, 0.0
                self._adopting.update(range(len(self.fragments)))
                self._group.report(
                    "not finite", f"round {round_}: {name} has NaN or infinities; this site has weight 0 in this round "
                    "and takes the values of the others; check the state of its inner optimiser",
                )  # fmt: skip
            if not weight:
                change = fragment.no_change(self.max_change)
            future = self._worker.submit(self._average, fragment, change, round_, weight, time.monotonic())
        self._pending.append(_Pending(index, self.steps + self._delay_now(), future))

    def _delay_now(self) -> int:
        """Return the delay of the round that is sent now, the same in all processes of the site."""
        if self.delay is not None:
            return self.delay
        planned = [self.pace.delay()]
        if self._world > 1:
            dist.broadcast_object_list(planned, src=0)
        return planned[0]

    def _average(self, fragment: Fragment, change: Change, round_: int, weight: float, sent: float) -> Averaged:
        """Average a fragment, move the outer values, and offer the new state to sites that join. Runs in the worker's
        thread.
        """
        assert self._group is not None, "only the site's first process has a worker"
        found, mean = self._group.average_change(change, round=round_, weight=weight, bits=self.bits)
        if any(found.weights):  # else no site has trained since the fragment was sent last: nothing is left to do
            if found.left is not None and weight:
                for number, left in change.split(found.left).items():
                    fragment.left[fragment.tensors[number].place] = left
            fragment.move(mean, self.rate, self.momentum)
        self._shared_round = round_ + 1
        self._group.offer(self._state(), self._shared_round, self._constant())
        self.pace.took(time.monotonic() - sent)
        return found

    def _finish(self) -> None:
        """Wait for the oldest round under way, and mix its result in."""
        pending = self._pending.pop(0)
        error: OverlayError | None = None
        written: list[torch.Tensor] = []
        if self._group is not None:
            try:
                self.last = pending.future.result()
                written = self._write(pending.fragment)
                self.round += 1
            except Behind as behind:
                error, written = self._catch_up(behind), self._all()
            except OverlayError as failed:
                error = failed
        self._tell_site(written, error)

    def _write(self, index: int) -> list[torch.Tensor]:
        """Mix the outer values of a fragment in; return the tensors that were written. If this site's own values are
        not finite, the outer ones replace them, in all fragments that are not under way.
        """
        if index not in self._adopting:
            return [each.tensor for each in self.fragments[index].write(self.mixing)]
        ready = self._adopting - {pending.fragment for pending in self._pending}
        self._adopting -= ready
        for each in ready:
            self.fragments[each].adopt()
        return [shared.tensor for each in ready for shared in self.fragments[each].tensors]

    def _catch_up(self, behind: Behind) -> OverlayError | None:
        """Take the state of the other sites, which have done more rounds, and give up the rounds under way. Return the
        error where that fails, else None.
        """
        for pending in self._pending:
            pending.future.exception()  # waits for its end: its round was done by the others, too
        self._pending.clear()
        self._adopting.clear()
        self.last = Averaged((), (), None, 0.0)
        try:
            self._take_state()
        except OverlayError as error:
            return error
        return None

    def _drain(self) -> None:
        while self._pending:
            self._finish()

    # --- several processes of a site ---

    def _all(self) -> list[torch.Tensor]:
        return [each.tensor for part in self.fragments for each in part.tensors]

    def _tell_site(self, tensors: Collection[torch.Tensor], error: OverlayError | None, *, fixed: bool = False) -> None:
        """Give the site's other processes these tensors and the round, and with `fixed` the fixed tensors; or raise the
        error at all of them.
        """
        if self._world > 1:
            words = f"{type(error).__name__}: {error}" if error is not None else None
            last = None if self.last is None else replace(self.last, left=None)
            everything, given = self._all(), {id(tensor) for tensor in tensors}
            places = [place for place, tensor in enumerate(everything) if id(tensor) in given]
            said: list[Any] = [(self.round, len(self._pending), places, words, last, self._fixed if fixed else None)]
            dist.broadcast_object_list(said, src=0)
            self.round, pending, places, words, self.last, values = said[0]
            del self._pending[pending:]  # the site has taken the others' state, and nothing is under way any more
            with torch.no_grad():
                for place in () if words is not None else places:
                    dist.broadcast(everything[place], src=0)
            if values is not None and words is None:
                self._set_fixed(values)
            if error is None and words is not None:
                raise OverlayError(words)
        if error is not None:
            raise error

    # --- the state that all sites share ---

    def _agree(self, *, fixed: bool) -> None:
        """Make the model that of all sites, in this process and in the site's other processes; with `fixed` also the
        fixed tensors.
        """
        error: OverlayError | None = None
        if self._group is not None:
            try:
                self._take_state()
                if fixed:
                    self._set_fixed(self._fixed)
            except OverlayError as failed:
                error = failed
        self._tell_site(self._all(), error, fixed=fixed)

    def _set_fixed(self, values: Sequence[Bytes]) -> None:
        for (_, tensor), each in zip(self._tensors.fixed, values, strict=True):
            set_bytes(tensor, each)

    def _take_state(self) -> None:
        assert self._group is not None, "only the site's first process takes states"
        own = self._state()
        try:
            state = self._group.agree(own, self._shared_round, self._description, self._constant())
        except Differs as differs:
            words = difference(differs.site, differs.theirs, self._description)
            raise OverlayError(f"{self._group.site}: {words}") from None
        if state.data is not own:
            self._load(state.data, state.constant.arrays)
            for part in self.fragments:
                part.adopt()
            self._sent_samples = [self.samples] * len(self.fragments)
            self.round = self._shared_round = state.round

    def _state(self) -> Bytes:
        """Return the part of the state that all sites share which rounds change, as bytes: a line of JSON, then outer
        values and momentum of the tensors that have changed at some site.
        """
        model = hashlib.sha256(self._description.encode()).hexdigest()
        head = {"version": STATE_VERSION, "model": model, "moved": [f"{part.moved:x}" for part in self.fragments]}
        words = json.dumps(head).encode()
        words += b" " * (-(len(words) + 1) % 4) + b"\n"
        return np.concatenate([np.frombuffer(words, np.uint8), *self._changing()])

    def _changing(self) -> list[Bytes]:
        return [
            array[place].view(np.uint8)
            for part in self.fragments for array in (part.outer, part.momentum) for place in part.places(moved=True)
        ]  # fmt: skip

    def _constant(self) -> Constant:
        """Return the rest of the state: outer values of the tensors that have changed at no site, and the fixed
        tensors. Frozen parameters may be most of a model, so this is not computed for each round.
        """
        moved = [part.moved for part in self.fragments]
        if self._known_constant is None or self._known_constant[0] != moved:
            self._known_constant = moved, Constant.of(self._unchanged())
        return self._known_constant[1]

    def _unchanged(self) -> list[Bytes]:
        outer = [part.outer[place] for part in self.fragments for place in part.places(moved=False)]
        return [*(each.view(np.uint8) for each in outer if each.size), *self._fixed]

    def _load(self, data: Bytes, constant: Sequence[Bytes]) -> None:
        """Take another site's state. Raise OverlayError if it is of another model or of other settings."""
        end = int(np.argmax(data[:HEAD_BYTES] == ord("\n"))) + 1
        try:
            head = json.loads(data[:end].tobytes())
            version, model, moved = int(head["version"]), str(head["model"]), [int(each, 16) for each in head["moved"]]
        except (ValueError, KeyError, TypeError) as error:
            raise OverlayError(f"the other sites' state cannot be read: {error!r}") from None
        own = hashlib.sha256(self._description.encode()).hexdigest()
        fits = all(each >> len(part.tensors) == 0 for each, part in zip(moved, self.fragments, strict=False))
        if (version, model, len(moved)) != (STATE_VERSION, own, len(self.fragments)) or not fits:
            raise OverlayError("the other sites train another model, or with other settings")
        before = [(part.moved, part.outer, part.momentum) for part in self.fragments], self._fixed
        for bits, part in zip(moved, self.fragments, strict=True):
            part.moved, part.outer, part.momentum = bits, np.empty_like(part.outer), np.zeros_like(part.momentum)
        self._fixed, self._known_constant = [np.empty_like(each) for each in self._fixed], None
        changing, unchanged = self._changing(), self._unchanged()
        size, sizes = sum(each.size for each in changing), [each.size for each in unchanged]
        if end + size != data.size or [each.size for each in constant] != sizes:
            for part, kept in zip(self.fragments, before[0], strict=True):
                part.moved, part.outer, part.momentum = kept
            self._fixed = before[1]
            raise OverlayError(f"the other sites' state has another size than this model's: {data.size} bytes")
        for array in changing:
            array[:] = data[end : end + array.size]
            end += array.size
        for array, values in zip(unchanged, constant, strict=True):
            array[:] = values

    def _load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        if checkpoint["version"] != STATE_VERSION:
            raise OverlayError(
                f"the checkpoint is of version {checkpoint['version']}, and this program reads {STATE_VERSION}"
            )
        sizes = [part.values for part in self.fragments] + [each.size for each in self._fixed]
        found = [part.numel() for part in (*checkpoint["outer"], *checkpoint["fixed"])]
        if found != sizes:
            raise OverlayError(f"the checkpoint is of fragments of {found} values, and this model has {sizes}")
        self.round = self._shared_round = int(checkpoint["round"])
        self.steps = int(checkpoint["steps"])
        self.samples, self._sent_samples = float(checkpoint["samples"]), list(checkpoint["sent_samples"])
        self._fixed = [each.numpy().copy() for each in checkpoint["fixed"]]
        self._known_constant = None
        for index, part in enumerate(self.fragments):
            part.moved = int(checkpoint["moved"][index])
            part.adopt(checkpoint["model"][index].numpy())
            for name in ("outer", "momentum", "left", "rest"):
                getattr(part, name)[:] = checkpoint[name][index].numpy()


class DiLoCo(StreamingDiLoCo):
    """Averages the whole model every so many steps, while no site trains (Douillard et al., 2023). The arguments are
    those of `StreamingDiLoCo`; `every` is the paper's H.
    """

    def __init__(
        self,
        model: nn.Module,
        group: SiteGroup | None,
        *,
        every: int = 100,
        rate: float = 0.7,
        momentum: float = 0.9,
        bits: int = 8,
        max_change: float | None = MAX_CHANGE,
        checkpoint: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(
            model, group, every=every, fragments=1, delay=0, mixing=0.0, rate=rate, momentum=momentum, bits=bits,
            max_change=max_change, checkpoint=checkpoint,
        )  # fmt: skip


class LocalSGD(StreamingDiLoCo):
    """Replaces the sites' models by their mean every so many steps (Stich, 2019). The arguments are those of
    `StreamingDiLoCo`.
    """

    def __init__(
        self,
        model: nn.Module,
        group: SiteGroup | None,
        *,
        every: int = 10,
        bits: int = FLOAT_BITS,
        max_change: float | None = MAX_CHANGE,
        checkpoint: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(
            model, group, every=every, fragments=1, delay=0, mixing=0.0, rate=1.0, momentum=0.0, bits=bits,
            max_change=max_change, checkpoint=checkpoint,
        )  # fmt: skip


def _check_processes(group: SiteGroup | None, known: int) -> None:
    """Check that a site's processes hear of each other's rounds; raise OverlayError otherwise.

    Args:
        group: the group of this process, or None.
        known: number of processes of this site that torch.distributed knows.
    """
    started = int(os.environ.get("WORLD_SIZE") or 1)
    if known == 1 and started > 1:
        raise OverlayError(
            f"torchrun has started {started} processes at this site, and they do not know each other: call "
            "torch.distributed.init_process_group() before, as DDP needs it"
        )
    if group is None and known == 1:
        raise OverlayError("this process is the only one of its site: it needs a group, of inart.sites.init()")
