"""The results of a run, and their forms: table, summary.json, CSV."""

import csv
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from topologies.command import aligned
from topologies.load import Load

RATE_TOLERANCE = 0.10
LEAST_RATIO = 0.5  # lowest fraction of the planned rate with which a run ends with exit status 0
# Losses are compared relative to their size: the steps before have moved the parameters apart by rounding.
LOSS_TOLERANCE = 1e-3
# Larger differences are accepted up to this factor times the effect that rounding alone has on the losses of a training
# over gloo: one more rounding is one more sample of a chaotic process. Whether sums are right is checked by the sums.
AMPLIFIED = 8.0


@dataclass(frozen=True)
class StrategyResult:
    """Results of one strategy. Rates are those of one worker on the wire, in Mbit/s.

    Attributes:
        communication_seconds: seconds of one all-reduce of the largest model.
        ps_ingress_bytes: bytes of that all-reduce at the interfaces of all parameter servers together.
        model_seconds: seconds of an all-reduce of each model.
        largest_error: largest error of a result against the exact sum.
        error_bound: largest error that is allowed.
        bit_identical: whether all workers have the same bits.
        rate_measurements: how often the rate was measured; the last measurement counts.
    """

    name: str
    planned_rate_mbps: float
    measured_rate_mbps: float
    communication_seconds: float
    ps_ingress_bytes: int
    model_seconds: dict[str, float]
    bottleneck: str
    load: Load
    packets_resent: int
    bit_identical: bool
    largest_error: float
    error_bound: float
    rate_measurements: int = 1

    @property
    def ratio(self) -> float:
        return self.measured_rate_mbps / self.planned_rate_mbps

    def to_json(self) -> dict[str, Any]:
        found = asdict(self)
        del found["load"]
        return found | {
            "cpu_idle_share": round(self.load.idle, 4),
            "switch_drops": self.load.drops,
            "network_was_the_limit": self.load.network_was_the_limit,
        }

    @property
    def as_planned(self) -> bool:
        return abs(self.ratio - 1) <= RATE_TOLERANCE


@dataclass
class Checked:
    """The outcome of checking a training's sums.

    Attributes:
        buckets: number of all-reduces that were checked.
        unchecked: number of all-reduces for which there was no memory.
        wrong: the first few errors, in words.
        wrong_buckets: number of all-reduces with an error.
        largest: the largest error, as a fraction of its bound.
    """

    buckets: int = 0
    unchecked: int = 0
    wrong_buckets: int = 0
    wrong: list[str] = field(default_factory=list)
    largest: float = 0.0

    @property
    def right(self) -> bool:
        return self.buckets > 0 and not self.wrong_buckets


@dataclass(frozen=True)
class Training:
    """Results of a training: the loss of every step (mean over the workers), and the seconds of all steps.

    Attributes:
        strategy: the plan through whose trees the gradients went.
        ranks: number of ranks of each worker.
        sums: the check of all its all-reduces through the switches.
        loss_rounded: losses of a training over gloo with errors like those of fixed point; empty where it was not
            needed.
    """

    loss_gloo: list[float]
    loss_inart: list[float]
    seconds_gloo: float
    seconds_inart: float
    strategy: str
    workers: int
    dataset: str
    parameters: int
    test_accuracy_gloo: float
    test_accuracy_inart: float
    ranks: int = 1
    sums: Checked = field(default_factory=Checked)
    loss_rounded: list[float] = field(default_factory=list)

    @property
    def largest_difference(self) -> float:
        """Largest difference between the two losses of a step, relative to gloo's."""
        return max(self._differences(self.loss_inart), default=0.0)

    @property
    def largest_by_rounding(self) -> float:
        """Largest such difference of the training over gloo with rounding errors; 0 where that was not needed."""
        return max(self._differences(self.loss_rounded), default=0.0) if self.loss_rounded else 0.0

    def _differences(self, losses: list[float]) -> list[float]:
        return [abs(a - b) / max(abs(a), 1e-12) for a, b in zip(self.loss_gloo, losses, strict=True)]

    @property
    def losses_agree(self) -> bool:
        """Whether no step's losses differ by more than LOSS_TOLERANCE, or than AMPLIFIED times the effect of rounding
        alone.
        """
        return self.largest_difference <= max(LOSS_TOLERANCE, AMPLIFIED * self.largest_by_rounding)

    @property
    def agrees(self) -> bool:
        """Whether every sum was right, and the losses differ by no more than rounding explains."""
        return self.sums.right and self.losses_agree

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"largest_difference": self.largest_difference, "agrees": self.agrees}


@dataclass(frozen=True)
class Report:
    """The report of a run.

    Attributes:
        gloo_seconds: seconds of the same all-reduces over gloo; empty where they were not run.
        tcp_mbps: rate of one TCP flow between distant hosts.
    """

    switch: str
    topology: str
    settings: dict[str, Any]
    strategies: list[StrategyResult]
    gloo_seconds: dict[str, float] = field(default_factory=dict)
    training: Training | None = None
    tcp_mbps: float = 0.0
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Return the content of summary.json."""
        return {
            "switch": self.switch,
            "topology": self.topology,
            "settings": self.settings,
            "strategies": [each.to_json() for each in self.strategies],
            "gloo_seconds": self.gloo_seconds,
            "training": None if self.training is None else self.training.to_json(),
            "tcp_mbps": self.tcp_mbps,
            "seconds": round(self.seconds, 1),
        }

    def table(self) -> str:
        """Return the table that the command prints at its end."""
        models = list(self.strategies[0].model_seconds) if self.strategies else []
        header = ["strategy", "planned", "measured", "ratio", *models, "PS ingress", "CPU idle", "bottleneck"]
        units = ["", "Mbit/s", "Mbit/s", "", *["s" for _ in models], "MB", "", ""]
        rows = [header, units]
        for s in self.strategies:
            times = [f"{s.model_seconds[m]:.2f}" for m in models]
            rows.append(
                [
                    s.name,
                    f"{s.planned_rate_mbps:.3g}",
                    f"{s.measured_rate_mbps:.3g}",
                    f"{s.ratio:.3f}",
                    *times,
                    f"{s.ps_ingress_bytes / 1e6:.2f}",
                    f"{s.load.idle:.0%}",
                    s.bottleneck,
                ]
            )
        if self.gloo_seconds:
            times = [f"{self.gloo_seconds[m]:.2f}" for m in models]
            rows.append(["gloo (ring)", "", "", "", *times, "", "", ""])
        lines = aligned(rows)
        if self.training is not None:
            lines += ["", *_loss_lines(self.training)]
        return "\n".join([*lines, "", *self.remarks()])

    def remarks(self) -> list[str]:
        """Return what a reader must know, good or bad, one sentence each."""
        lines = [f"Switches: {self.switch}, {self.topology}."]
        for s in self.strategies:
            if not s.load.network_was_the_limit:
                lines.append(
                    f"{s.name}: the CPU was busy ({s.load.idle:.0%} idle): the machine and not the network may have "
                    "been the limit. Use a lower BANDWIDTH=, or end other programs."
                )
            if s.rate_measurements > 1:
                lines.append(f"{s.name}: the rate was measured {s.rate_measurements} times, the last one counts.")
            if not s.as_planned:
                lines.append(f"{s.name}: measured {s.ratio:.2f} of the planned rate, more than 10 % off.")
            if s.load.drops:
                drops = ", ".join(f"{count} ({reason})" for reason, count in s.load.drops.items())
                lines.append(f"{s.name}: frames dropped by switches: {drops}; {s.packets_resent} packets were resent.")
            if not s.bit_identical:
                lines.append(f"{s.name}: WRONG: the workers have different results.")
            if s.largest_error > s.error_bound:
                lines.append(f"{s.name}: WRONG: error {s.largest_error:.3g}, above the bound {s.error_bound:.3g}.")
        if self.strategies and self.sound:
            lines.append("Every sum was the same on all workers, bit by bit, and within the bound of the exact sum.")
        if self.strategies and all(s.load.network_was_the_limit and s.as_planned for s in self.strategies):
            lines.append("The network was the limit: measured rates are within 10 % of the plan, with CPU to spare.")
        if self.training is not None:
            lines += _training_remarks(self.training)
        return lines

    @property
    def carried(self) -> bool:
        """Whether every rate was at least half of the planned one: a lower one would be hidden by a table alone."""
        return all(s.ratio >= LEAST_RATIO for s in self.strategies)

    @property
    def sound(self) -> bool:
        """Whether every sum was right."""
        return all(s.bit_identical and s.largest_error <= s.error_bound for s in self.strategies)

    def write(self, directory: Path) -> list[Path]:
        """Write summary.json, strategies.csv and (with training) losses.csv, and return their paths."""
        directory.mkdir(parents=True, exist_ok=True)
        summary = directory / "summary.json"
        summary.write_text(json.dumps(self.to_json(), indent=2) + "\n")
        paths = [summary, directory / "strategies.csv"]
        rows = [
            {
                "strategy": s.name,
                "planned_rate_mbps": s.planned_rate_mbps,
                "measured_rate_mbps": s.measured_rate_mbps,
                "communication_seconds": s.communication_seconds,
                "ps_ingress_bytes": s.ps_ingress_bytes,
                **{f"seconds_{model}": seconds for model, seconds in s.model_seconds.items()},
                "cpu_idle_share": s.load.idle,
                "bottleneck": s.bottleneck,
            }
            for s in self.strategies
        ]
        with paths[-1].open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0] if rows else [])
            writer.writeheader()
            writer.writerows(rows)
        if self.training is not None:
            paths.append(directory / "losses.csv")
            with paths[-1].open("w", newline="") as file:
                lines = csv.writer(file)
                lines.writerow(["step", "loss_gloo", "loss_inart"])
                pairs = zip(self.training.loss_gloo, self.training.loss_inart, strict=True)
                lines.writerows([step, *pair] for step, pair in enumerate(pairs, 1))
        return paths


def _training_remarks(training: Training) -> list[str]:
    sums = training.sums
    unchecked = f" ({sums.unchecked} more were not checked, for want of memory)" if sums.unchecked else ""
    if sums.right:
        lines = [
            f"Every one of the training's {sums.buckets} all-reduces through the switches was within its bound of the "
            f"exact sum (at most {sums.largest:.2f} of it), and the same on all workers{unchecked}."
        ]
    elif not sums.buckets:
        lines = ["The training's sums WERE NOT CHECKED: none could be kept."]
    else:
        wrong = "; ".join(sums.wrong)
        lines = [f"Training: WRONG: {sums.wrong_buckets} of {sums.buckets} all-reduces{unchecked}: {wrong}."]
    rounding = ""
    if training.loss_rounded:
        rounding = f" (over gloo with fixed point's rounding errors they differ by {training.largest_by_rounding:.1e})"
    verdict = "agree" if training.losses_agree else "DO NOT AGREE"
    lines.append(
        f"Losses through the switches and over gloo {verdict}: they differ by at most "
        f"{training.largest_difference:.1e} of their value{rounding}."
    )
    return lines


def _loss_lines(training: Training) -> list[str]:
    steps = len(training.loss_gloo)
    shown = sorted({0, *range(max(steps // 8 - 1, 0), steps, max(steps // 8, 1)), steps - 1}) if steps else []
    rows = [["step", "loss, gloo", f"loss, switches ({training.strategy})", "difference"]]
    for step in shown:
        a, b = training.loss_gloo[step], training.loss_inart[step]
        rows.append([str(step + 1), f"{a:.6f}", f"{b:.6f}", f"{b - a:+.1e}"])
    rows.append(["time", f"{training.seconds_gloo:.1f} s", f"{training.seconds_inart:.1f} s", ""])
    rows.append(["test", f"{training.test_accuracy_gloo:.1%}", f"{training.test_accuracy_inart:.1%}", ""])
    workers = f"{training.workers} workers" + (f" of {training.ranks} ranks" if training.ranks > 1 else "")
    what = f"{training.parameters:,} parameters, {workers}, {steps} steps"
    return [f"Training: {training.dataset}, {what}.", *aligned(rows)]
