"""The tensors of a model that sites share, and the fragments in which they average them.

- *Averaged* are all floating-point parameters, also those that are not trained yet, and the floating-point buffers that
  the model's state has (BatchNorm's means).
- *Fixed* are other tensors of the model's state (counters, indices, quantised weights): a site that joins gets the
  values with which the sites began, and each site has its own from then on.
- *Local* are the buffers that are not in the model's state (`persistent=False`: masks, tables): sites compare their
  values when they join.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import nn

from overlay.core.errors import OverlayError
from overlay.net.site_services import Bytes
from overlay.sites.change import Change
from overlay.sites.packing import Floats, squares_of

WRAPPERS = re.compile(r"(?:^|(?<=\.))(?:module|_orig_mod)\.")
"""Parts of a tensor's name that DDP and torch.compile add: sites may wrap their models in different ways."""

EXACT = torch.float32, torch.float64
"""Types that have every float32 value."""


@dataclass(eq=False)
class Shared:
    """A tensor that the sites average.

    Attributes:
        name: its name in the model.
        trained: whether it is a parameter, and no buffer.
        first, end: places of its values in the arrays of its fragment.
        version: version of the tensor when its values were those of the sites last.
    """

    name: str
    tensor: torch.Tensor
    trained: bool
    first: int = 0
    end: int = 0
    version: int = 0

    @property
    def place(self) -> slice:
        """Return the places of its values in the arrays of its fragment."""
        return slice(self.first, self.end)

    def read(self) -> Floats:
        """Return the present values, in memory of their own."""
        values: Floats = self.tensor.detach().reshape(-1).to("cpu", torch.float32, copy=True).numpy()
        return values

    def seen(self) -> None:
        """Note that the present values are those of the sites."""
        self.version = _version(self.tensor)

    def changed(self) -> bool:
        """Return whether the values may have changed: those of a parameter without gradients change seldom."""
        return not self.trained or self.tensor.requires_grad or self.version != _version(self.tensor)


@dataclass
class Tensors:
    """The tensors of a model, by what sites do with them; of fixed and local ones, also the names."""

    averaged: list[Shared] = field(default_factory=list)
    fixed: list[tuple[str, torch.Tensor]] = field(default_factory=list)
    local: list[tuple[str, torch.Tensor]] = field(default_factory=list)


def tensors_of(model: nn.Module) -> Tensors:
    """Return the tensors of a model, in the model's order. A tensor that modules share counts once. Raise OverlayError
    if sites cannot share them.
    """
    found, seen = Tensors(), set[int]()
    for prefix, module in model.named_modules():
        named = [(name, each, True) for name, each in module.named_parameters(recurse=False)]
        named += [(name, each, False) for name, each in module.named_buffers(recurse=False)]
        for key, tensor, trained in named:
            if id(tensor) in seen:
                continue
            seen.add(id(tensor))
            name = WRAPPERS.sub("", f"{prefix}.{key}" if prefix else key)
            if hasattr(tensor, "to_local"):
                raise OverlayError(f"{name} must be whole in this process: no FSDP, no pipeline")
            if not trained and key in getattr(module, "_non_persistent_buffers_set", ()):
                found.local.append((name, tensor))
            elif tensor.is_floating_point():
                found.averaged.append(Shared(name, tensor, trained))
            elif trained and tensor.requires_grad:
                raise OverlayError(f"{name} is trained in {tensor.dtype}: sites average real numbers only")
            else:
                found.fixed.append((name, tensor))
    trained_ones = [each.tensor for each in found.averaged if each.trained and each.tensor.requires_grad]
    if not trained_ones:
        raise OverlayError("the model has no parameters to train")
    for each in found.averaged:
        if (each.tensor.requires_grad or not each.trained) and each.tensor.device != trained_ones[0].device:
            raise OverlayError(f"{each.name} must be on {trained_ones[0].device}, as the other parameters are")
    return found


def divided(averaged: Sequence[Shared], count: int) -> list[list[Shared]]:
    """Return the tensors of each fragment, parameters first. Raise OverlayError where they cannot be divided so."""
    total, done = sum(each.tensor.numel() for each in averaged), 0
    parts: list[list[Shared]] = [[] for _ in range(count)]
    for each in averaged:
        size = each.tensor.numel()
        parts[min(count - 1, count * (done + size // 2) // total)].append(each)
        done += size
    if not all(any(each.trained for each in part) for part in parts):
        raise OverlayError(f"the model's tensors cannot be divided into {count} fragments: give fewer")
    return [sorted(part, key=lambda each: not each.trained) for part in parts]


def bytes_of(tensor: torch.Tensor) -> Bytes:
    """Return the values of a tensor of any type, as bytes."""
    values: Bytes = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().copy()
    return values


@torch.no_grad()
def set_bytes(tensor: torch.Tensor, values: Bytes) -> None:
    """Give a tensor the values that `bytes_of` has returned."""
    tensor.copy_(torch.from_numpy(values.copy()).view(tensor.dtype).view(tensor.shape))


def digest_of_tensor(tensor: torch.Tensor) -> str:
    """Return a digest of a tensor's type, shape and values."""
    about = f"{tensor.dtype} {list(tensor.shape)} ".encode()
    return hashlib.sha256(about + bytes_of(tensor).tobytes()).hexdigest()


def _version(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


class Fragment:
    """Tensors that are averaged together. All arrays have the values of all of them, in their order.

    Attributes:
        outer: the outer values, which all sites share.
        momentum: momentum of the parameters; 0 for buffers.
        left: the part of this site's changes that rounding to few bits has left out; each site has its own.
        rest: the part of the tensors' values that their type cannot represent; each site has its own.
        moved: the tensors that have changed at some site since training began, as bits.
    """

    def __init__(self, tensors: Sequence[Shared]) -> None:
        self.tensors, first = list(tensors), 0
        for each in self.tensors:
            each.first, each.end = first, first + each.tensor.numel()
            first = each.end
        self.values, self.moved = first, 0
        self.sizes = [each.tensor.numel() for each in self.tensors]
        own = [each.tensor.device for each in self.tensors if each.tensor.requires_grad]
        self._device = own[0] if own else self.tensors[0].tensor.device
        on_gpu = self._device.type == "cuda"
        self._stream = torch.cuda.Stream(self._device) if on_gpu else None
        self.host = torch.empty(0, dtype=torch.float32, pin_memory=on_gpu)
        self.outer: Floats = np.empty(self.values, np.float32)
        self.momentum: Floats = np.zeros(self.values, np.float32)
        self.left: Floats = np.zeros(self.values, np.float32)
        self.rest: Floats = np.zeros(self.values, np.float32)
        for each in self.tensors:
            self.outer[each.place] = each.read()
            each.seen()

    def changing(self) -> list[Shared]:
        """Return the tensors whose values may differ from those that the sites share."""
        return [each for number, each in enumerate(self.tensors) if self.moved >> number & 1 or each.changed()]

    # --- the tensors' own values ---

    def _views(self, tensors: Sequence[Shared]) -> list[Floats]:
        """Return memory for the values of each of these tensors, which the next call uses again."""
        sizes = [each.end - each.first for each in tensors]
        if sum(sizes) > self.host.numel():
            self.host = torch.empty(sum(sizes), dtype=torch.float32, pin_memory=self._stream is not None)
        ends = np.cumsum(sizes).tolist()
        return [self.host[end - size : end].numpy() for size, end in zip(sizes, ends, strict=True)]

    def read(self, tensors: Sequence[Shared]) -> list[Floats]:
        """Return the present values of each of these tensors, in memory that the next call uses again. From a GPU they
        are copied over pinned memory, on a stream of its own.
        """
        views = self._views(tensors)
        if self._stream is None:
            self._copy_out(tensors, views)
        else:
            self._stream.wait_stream(torch.cuda.current_stream(self._device))
            with torch.cuda.stream(self._stream):
                self._copy_out(tensors, views)
            self._stream.synchronize()
        return views

    @torch.no_grad()
    def _copy_out(self, tensors: Sequence[Shared], views: Sequence[Floats]) -> None:
        for each, view in zip(tensors, views, strict=True):
            near = each.tensor.device == self._device
            torch.from_numpy(view).copy_(each.tensor.detach().reshape(-1), non_blocking=near)

    def own(self) -> Floats:
        """Return this site's own values of all tensors."""
        found, changing = self.outer.copy(), self.changing()
        for each, values in zip(changing, self.read(changing), strict=True):
            found[each.place] = values
        return found

    def write(self, mixing: float = 0.0) -> list[Shared]:
        """Give the tensors the outer values, and return those that were written. A value of a buffer whose outer value
        is not finite stays as it is: each site has its own.

        Args:
            mixing: the part of their own values that the tensors keep.
        """
        changing = self.changing()
        views = self.read(changing) if mixing else self._views(changing)
        for each, view in zip(changing, views, strict=True):
            outer = self.outer[each.place]
            if mixing:
                np.multiply(view + self.rest[each.place], np.float32(mixing), out=view)
                view += outer * np.float32(1 - mixing)
            else:
                view[:] = outer
            if not each.trained and not (finite := np.isfinite(outer)).all():
                view[~finite] = each.read()[~finite]
            self._put(each, view)
        self._settle()
        return changing

    def adopt(self, values: Floats | None = None) -> None:
        """Give all tensors the outer values, or these ones, exactly: this site starts from them."""
        source = self.outer if values is None else values
        for each in self.tensors:
            self._put(each, source[each.place])
        self._settle()
        self.left[:] = 0

    @torch.no_grad()
    def _put(self, each: Shared, values: Floats) -> None:
        """Give a tensor these values, and note the part of them that its type cannot represent."""
        wanted = torch.from_numpy(values)
        each.tensor.copy_(wanted.view_as(each.tensor), non_blocking=each.tensor.device == self._device)
        if each.tensor.dtype not in EXACT:
            stored = wanted.to(each.tensor.dtype).to(torch.float32)
            self.rest[each.place] = torch.where(stored == wanted, 0.0, wanted - stored).numpy()
        each.seen()

    def _settle(self) -> None:
        """Wait until the tensors have been written: the next call writes the memory that they are copied from."""
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()

    # --- rounds ---

    def change(self, most: float | None) -> Change:
        """Return this site's change: outer minus own values, plus the part that rounding left out of the last one.

        Args:
            most: maximum norm, as a multiple of the median of the other sites' norms; None for any norm.
        """
        found: dict[int, Floats] = {}
        reference, changing = 0.0, self.changing()
        numbers = {id(each): number for number, each in enumerate(self.tensors)}
        with np.errstate(invalid="ignore", over="ignore"):
            for each, own in zip(changing, self.read(changing), strict=True):
                outer = self.outer[each.place]
                own += self.rest[each.place]
                part = outer - own
                if not np.isfinite(part).all():
                    part[outer == own] = 0  # such as a mask of -inf
                    if not each.trained:
                        part[~np.isfinite(outer)] = 0  # such as a minimum that begins with inf: each site has its own
                part += self.left[each.place]
                found[numbers[id(each)]] = part
                reference += squares_of(outer) if each.trained else 0.0
        return Change(found, self.sizes, sent=self.moved, reference=reference**0.5, most=most)

    def no_change(self, most: float | None) -> Change:
        """Return the change of a site whose values are not to be in the mean."""
        return Change({}, self.sizes, sent=self.moved, most=most)

    def move(self, mean: Mapping[int, Floats], rate: float, momentum: float) -> None:
        """Move the outer values by the mean of the changes: v = momentum v + g, then rate (g + momentum v) (Nesterov,
        as PyTorch's SGD has it). Buffers become the mean.

        Args:
            mean: the mean change of each tensor that was sent.
            rate, momentum: learning rate and momentum.
        """
        moved = sum(1 << number for number in mean)
        if moved & ~self.moved:
            self.outer = self.outer.copy()  # a state that is being sent has the present values
        self.moved |= moved
        for number, gradient in mean.items():
            each = self.tensors[number]
            outer = self.outer[each.place]
            if not each.trained:
                outer -= gradient
                continue
            if momentum:
                kept = self.momentum[each.place]
                np.multiply(kept, np.float32(momentum), out=kept)
                np.add(kept, gradient, out=kept)
                gradient = gradient + kept * np.float32(momentum)
            outer -= gradient * np.float32(rate)

    def places(self, *, moved: bool) -> list[slice]:
        """Return the places of the tensors that have changed at some site, or of those that have not."""
        return [each.place for number, each in enumerate(self.tensors) if bool(self.moved >> number & 1) is moved]
