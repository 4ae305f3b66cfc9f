"""Operations whose values travel in few bits, over real interfaces. The result equals the numpy reference bit by bit,
whatever the network does to the packets and whatever trees carry them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from evaluation.hosts.star import TreeShape
from p4src.protocol import data_values
from tests.hosts.conftest import MIXED, WORKERS
from tests.hosts.rig import Rig, finish, tensors
from worker_agent.collectives import Operation, collective
from worker_agent.errors import AllReduceError, MismatchError
from worker_agent.fields import FIELDS, Fields, bits_of, is_stochastic
from worker_agent.fixedpoint import NONFINITE, Floats, dequantise, exponent, quantise

MakeRig = Callable[..., Rig]
WORDS = data_values(64)
ONE_TREE = (TreeShape(1, 1.0, True),)
FAULTS = {"loss": 0.03, "duplicate": 0.1, "reorder": 0.1, "hold_seconds": 0.01}


def reference(before: Sequence[Floats], op: Operation, dtype: str = "float32") -> Floats:
    """Return the sum or mean by worker_agent/fields.py (for 32 bits: fixedpoint.py), chunk by chunk from the tensor's
    beginning.
    """
    how = collective(op)
    bits = bits_of(dtype, how.bits, len(before))
    if bits == 32:
        return reference_in_32_bits(before, how.mean)
    stochastic = is_stochastic(dtype, bits, feedback=how.feedback)
    formats = [Fields(bits, len(before), WORDS, stochastic, how.seed, worker) for worker in range(len(before))]
    result = np.empty_like(before[0])
    for begin in range(0, len(result), formats[0].values):
        chunks = [tensor[begin : begin + formats[0].values] for tensor in before]
        biased = max(formats[0].exponent(chunk) for chunk in chunks)
        assert biased < NONFINITE
        words = [fields.quantise(chunk, biased, begin) for fields, chunk in zip(formats, chunks, strict=True)]
        total = np.sum(words, axis=0, dtype=np.int32)
        result[begin : begin + len(chunks[0])] = formats[0].dequantise(total, len(chunks[0]), biased, how.mean)
    return result


def reference_in_32_bits(before: Sequence[Floats], mean: bool) -> Floats:
    result = np.empty_like(before[0])
    for begin in range(0, len(result), WORDS):
        chunks = [tensor[begin : begin + WORDS] for tensor in before]
        biased = max(exponent(chunk) for chunk in chunks)
        words = [quantise(chunk, biased, len(before)) for chunk in chunks]
        total = np.sum(words, axis=0, dtype=np.int32)
        result[begin : begin + WORDS] = dequantise(np.asarray(total), biased, len(before), mean)
    return result


@pytest.mark.parametrize("trees", [MIXED, ONE_TREE], ids=["three trees and losses", "one tree"])
def test_the_bits_equal_the_references_for_any_trees_and_losses(make_rig: MakeRig, trees: Sequence[TreeShape]) -> None:
    rig = make_rig(trees)
    rig.faults(**(FAULTS if trees is MIXED else {}))
    for bits in FIELDS:
        for elements in (1, 2 * WORDS, 20_001):
            op = collective("mean" if elements == 1 else "sum").encoded(bits, seed=1000 + elements)
            before = tensors(bits, WORKERS, elements)
            after = [tensor.copy() for tensor in before]
            finish(rig.submit(after, op))
            expected = reference(before, op)
            assert all(result.tobytes() == expected.tobytes() for result in after)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_shares_words_and_is_the_reference_rounded(make_rig: MakeRig, dtype: str) -> None:
    torch = pytest.importorskip("torch")
    rig = make_rig()
    rig.faults(**FAULTS)
    kind, elements = getattr(torch, dtype), 20_001
    before = [torch.from_numpy(tensor).clamp(-3e4, 3e4).to(kind) for tensor in tensors(9, WORKERS, elements)]
    after = [tensor.clone() for tensor in before]
    finish([engine.allreduce_async(tensor) for engine, tensor in zip(rig.engines, after, strict=True)])
    expected = torch.from_numpy(reference([tensor.float().numpy() for tensor in before], "sum", dtype)).to(kind)
    assert all(torch.equal(result.view(torch.int16), expected.view(torch.int16)) for result in after)
    sent = rig.engines[0].stats().trees
    chunks = -(-elements // (2 * WORDS))
    assert sum(tree.next_sequence for tree in sent) <= chunks + chunks // WORDS + 2 * len(sent), "two in each word"


def test_a_reduce_scatter_in_few_bits_is_the_reference(make_rig: MakeRig) -> None:
    rig = make_rig()
    part = 5_003
    op = collective("scatter sum").encoded(8, seed=5)
    before = tensors(4, WORKERS, WORKERS * part)
    after = [tensor.copy() for tensor in before]
    finish(rig.submit(after, op))
    for worker, result in enumerate(after):
        own = slice(worker * part, (worker + 1) * part)
        bits = Fields(8, WORKERS, WORDS)
        for begin in range(own.start, own.stop, bits.values):
            chunks = [tensor[begin : min(begin + bits.values, own.stop)] for tensor in before]
            biased = max(bits.exponent(chunk) for chunk in chunks)
            words = [
                Fields(8, WORKERS, WORDS, True, 5, index).quantise(chunk, biased, begin)
                for index, chunk in enumerate(chunks)
            ]
            total = np.sum(words, axis=0, dtype=np.int32)
            there = result[begin : begin + len(chunks[0])]
            assert there.tobytes() == bits.dequantise(total, len(chunks[0]), biased).tobytes()
        others = np.ones(WORKERS * part, bool)
        others[own] = False
        assert (result[others] == before[worker][others]).all()


def test_nan_and_infinities_of_half_precision_arrive_each_in_its_place(make_rig: MakeRig) -> None:
    torch = pytest.importorskip("torch")
    rig = make_rig()
    before = [torch.ones(3000, dtype=torch.bfloat16) for _ in range(WORKERS)]
    before[0][10] = torch.nan
    before[1][11] = torch.inf
    before[2][12] = -torch.inf
    before[1][13], before[3][13] = torch.inf, -torch.inf
    after = [tensor.clone() for tensor in before]
    finish([engine.allreduce_async(tensor) for engine, tensor in zip(rig.engines, after, strict=True)])
    expected = torch.stack([tensor.float() for tensor in before]).sum(0)
    for result in after:
        assert torch.equal(result.isnan(), expected.isnan())
        finite = ~expected.isnan()
        assert torch.equal(result.float()[finite], expected[finite])


def test_the_unsent_part_is_kept_as_residual(make_rig: MakeRig) -> None:
    """What a worker has sent and its residual add up to its gradient; so the residuals make up what the sum lacks."""
    rig = make_rig()
    rig.faults(loss=0.03)
    elements = 10_000
    before = tensors(3, WORKERS, elements)
    arrays = [np.concatenate([tensor, np.full_like(tensor, np.nan)]) for tensor in before]
    finish(rig.submit(arrays, collective("sum").encoded(8, 3, feedback=True)))
    exact = np.sum([tensor.astype(np.float64) for tensor in before], axis=0)
    left = np.sum([array[elements:].astype(np.float64) for array in arrays], axis=0)
    largest = np.repeat([np.abs(np.stack(before)).max()], elements)
    assert (np.abs(arrays[0][:elements] + left - exact) <= largest * WORKERS * 2.0**-22).all()
    assert np.abs(left).max() > 0


def test_with_feedback_values_are_rounded_to_the_nearest(make_rig: MakeRig) -> None:
    rig = make_rig(ONE_TREE)
    before, op = tensors(3, WORKERS, 3_000), collective("sum").encoded(8, 5, feedback=True)
    arrays = [np.concatenate([tensor, np.zeros_like(tensor)]) for tensor in before]
    finish(rig.submit(arrays, op))
    assert arrays[0][:3_000].tobytes() == reference(before, op).tobytes()


def test_with_feedback_rounded_off_parts_are_sent_later(make_rig: MakeRig) -> None:
    """The same gradient is summed in each of 20 steps in 8 bits. The sum of the results is that of the exact sums
    except for the last residual, whereas without feedback the errors of the steps add up.
    """
    rig = make_rig()
    steps, elements = 20, 3000
    gradients = tensors(6, WORKERS, elements)
    exact = np.sum([one.astype(np.float64) for one in gradients], axis=0)
    left = [np.zeros(elements, np.float32) for _ in gradients]
    arrived = {True: np.zeros(elements), False: np.zeros(elements)}
    for step in range(steps):
        for feedback in arrived:
            op = collective("sum").encoded(8, step, feedback=feedback)
            if feedback:
                zeros = np.zeros(elements, np.float32)
                arrays = [np.concatenate([one + rest, zeros]) for one, rest in zip(gradients, left, strict=True)]
            else:
                arrays = [one.copy() for one in gradients]
            finish(rig.submit(arrays, op))
            arrived[feedback] += arrays[0][:elements]
            if feedback:
                left = [array[elements:] for array in arrays]
    still = np.sum([rest.astype(np.float64) for rest in left], axis=0)
    largest = np.abs(np.stack(gradients)).max() * WORKERS * steps
    assert (np.abs(arrived[True] + still - steps * exact) <= largest * 2.0**-20).all()
    off = {feedback: np.sqrt(np.mean((found - steps * exact) ** 2)) for feedback, found in arrived.items()}
    assert 2 * off[True] < off[False]


@pytest.mark.parametrize(("dtype", "elements", "op"), [("float16", 10, "sum"), ("float32", 11, "mean")])
def test_feedback_of_an_array_that_has_no_room_for_it_is_refused(
    make_rig: MakeRig, dtype: str, elements: int, op: str
) -> None:
    rig = make_rig()
    with pytest.raises(ValueError, match="feedback takes float32, twice as many as values"):
        rig.engines[0].allreduce_async(np.zeros(elements, dtype), collective(op).encoded(8, feedback=True))


def test_workers_that_disagree_about_bits_get_an_error_that_says_so(make_rig: MakeRig) -> None:
    rig = make_rig()
    arrays = tensors(1, WORKERS, 1000)
    works = [
        engine.allreduce_async(array, bits=8 if index else 16)
        for index, (engine, array) in enumerate(zip(rig.engines, arrays, strict=True))
    ]
    errors = []
    for work in works:
        with pytest.raises(AllReduceError) as raised:
            work.wait(30)
        errors.append(raised.value)
    assert any(isinstance(error, MismatchError) and "dtype, bits or operation" in str(error) for error in errors)
