"""A diffusivity field and the order of a 1-D time-fractional diffusion from noisy snapshots, with intervals.

    python benchmarks/calibration.py --seeds 20

200 points, 500 steps, 20 values of the field (the logarithm, linear between knots) and the order, 10 snapshots with 1 %
noise. For each seed: the seconds, the errors of the estimates, and how many of the 95 % intervals contain the truth.
Writes results/pde.json.
"""

from __future__ import annotations

import argparse
import json
import time

import torch
from report.record import here, put

import neuralfde as nf
from neuralfde.linear import Bands, diffusion

POINTS, STEPS, KNOTS, SNAPSHOTS, NOISE, ORDER, END = 200, 500, 20, 10, 0.01, 0.7, 1.0
SPACING = 1 / (POINTS + 1)
F64 = torch.float64


def hats() -> torch.Tensor:
    """From values at the knots to the faces between points: straight lines, (faces, knots)."""
    faces, knots = torch.linspace(0, 1, POINTS + 1, dtype=F64), torch.linspace(0, 1, KNOTS, dtype=F64)
    return (1 - (faces[:, None] - knots).abs() * (KNOTS - 1)).clamp(min=0)


HATS = hats()


def part(log_k: torch.Tensor) -> Bands:
    """The diffusion with this logarithm of the diffusivity at the knots."""
    return diffusion(0.05 * torch.exp(HATS @ log_k), SPACING)


def source(t: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    """What drives it everywhere, so that the data know the field everywhere."""
    x = torch.linspace(SPACING, 1 - SPACING, POINTS, dtype=z.dtype)
    return 1 + torch.sin(9 * torch.pi * x).expand_as(z)


def truth() -> torch.Tensor:
    """The logarithm of the field that is looked for."""
    knots = torch.linspace(0, 1, KNOTS, dtype=F64)
    return 0.5 * torch.sin(2 * torch.pi * knots) + 0.3 * torch.cos(5 * torch.pi * knots)


def data(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Times and snapshots, the initial state first and without noise."""
    x = torch.linspace(SPACING, 1 - SPACING, POINTS, dtype=F64)
    times = torch.linspace(0, END, SNAPSHOTS + 1, dtype=F64)
    z0 = torch.sin(torch.pi * x)
    clean = nf.fdeint(source, z0, times, ORDER, steps=2 * STEPS, linear=part(truth()))
    noise = torch.randn(clean.shape, dtype=F64, generator=torch.Generator().manual_seed(seed))
    return times, torch.cat([clean[:1], clean[1:] + NOISE * clean.abs().max() * noise[1:]])


def calibrated(seed: int) -> dict[str, float]:
    """One fit: its seconds, its largest error and the share of intervals that hold the truth."""
    times, seen = data(seed)
    began, cpu = time.perf_counter(), time.process_time()
    found = nf.fit(
        source, times, seen, params={"log_k": torch.zeros(KNOTS, dtype=F64)}, linear=part,
        order=0.9, learn_order=True, steps=STEPS,
    )  # fmt: skip
    seconds = {"seconds": time.perf_counter() - began, "processor seconds": time.process_time() - cpu}
    want = dict(zip([f"log_k[{i}]" for i in range(KNOTS)], truth().tolist(), strict=True)) | {"order": ORDER}
    held = [low <= want[name] <= high for name, (low, high) in found.intervals.items()]
    off = max(abs(found.estimates[name] - value) for name, value in want.items())
    return {**seconds, "order": found.order, "worst": off, "held": sum(held), "of": len(held)}


def main() -> None:
    read = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    read.add_argument("--seeds", type=int, default=20)
    rows = []
    torch.set_num_threads(1)  # the second core would save little
    for seed in range(read.parse_args().seeds):
        rows.append({"seed": seed, **calibrated(seed)})
        print(json.dumps(rows[-1]), flush=True)
    put("pde", "calibration", rows, **here(), command="python benchmarks/calibration.py")


if __name__ == "__main__":
    main()
