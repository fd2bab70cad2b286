"""The files of benchmarks/horizons.py: rows as JSON, a table and a plot."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch

from neuralfde.cli.measuring import machine
from neuralfde_experiments import tables


def _command(words: list[str]) -> str:
    """The command without the folder it wrote to."""
    kept = [w for k, w in enumerate(words) if w != "--out" and (k == 0 or words[k - 1] != "--out")]
    return " ".join(["python benchmarks/horizons.py", *kept])


def merge(report: Report, files: list[Path]) -> None:
    """Rows of the first file; what it left out for want of time comes from the next ones, and says so."""
    runs = [json.loads(f.read_text()) for f in files]
    report.about = {k: v for k, v in runs[0].items() if k not in ("rows", "bare_kernels_ms")}
    report.about["command"] = _command(report.about["command"].split()[2:])
    report.bare = runs[0]["bare_kernels_ms"]
    earlier = {(r["name"], r["t"]): r for run in reversed(runs[1:]) for r in run["rows"] if r["total_s"] is not None}
    for row in runs[0]["rows"]:
        found = earlier.get((row["name"], row["t"]))
        if row["total_s"] is None and found is not None:
            row = found | {"note": f"{found['note']}; another run"}
        if row["total_s"] is not None:
            report.rows.append(row)


class Report:
    """Rows as they come; the files are written after each."""

    def __init__(self, out: Path, name: str, device: torch.device | None = None) -> None:
        out.mkdir(parents=True, exist_ok=True)
        self.path = out / f"horizons-{name}"
        self.rows: list[dict[str, Any]] = []
        self.bare: dict[str, dict[str, float]] = {}
        self.about: dict[str, Any] = {**machine(device), "command": _command(sys.argv[1:])}

    def add(self, row: dict[str, Any]) -> None:
        """Take a row in and write the files."""
        self.rows.append(row)
        shown = {k: v for k, v in row.items() if k.endswith(("_s", "_mib", "error", "note")) and v}
        print(f"{row['name']} T={row['t']:g}: {shown}", flush=True)
        self.flush()

    def flush(self) -> None:
        """Write JSON and the table."""
        data = {**self.about, "bare_kernels_ms": self.bare, "rows": self.rows}
        self.path.with_suffix(".json").write_text(json.dumps(data, indent=1))
        self.path.with_suffix(".md").write_text(self.table())

    def table(self) -> str:
        """The rows in Markdown."""
        about = self.about
        lines = [f"{about['device']}, torch {about['torch']}, {about['date']}. `{about['command']}`", ""]
        for name, found in self.bare.items():
            lines.append(f"Bare kernels, {name}: " + ", ".join(f"{k} {v:.3f} ms" for k, v in found.items()) + "  ")
        body = []
        for r in self.rows:
            cells = [f"{r[k]:.3f}" if r[k] is not None else "" for k in ("forward_s", "backward_s", "total_s")]
            peak = "" if r["peak_mib"] is None else f"{r['peak_mib']:.0f}"
            error = "" if r["gradient_error"] is None else f"{r['gradient_error']:.1e}"
            body.append([r["name"], f"{r['t']:g}", r["steps"], *cells, peak, error, r["note"]])
        head = ("case", "T", "N", "forward s", "backward s", "total s", "peak MiB", "gradient error", "")
        return "\n".join([*lines, "", tables.markdown(head, body)]) + "\n"

    def plot(self) -> None:
        """Time and memory over N, with the bare kernels."""
        try:
            import matplotlib

            matplotlib.use("Agg")
            from matplotlib import pyplot
        except ImportError:
            print("no matplotlib: no plot")
            return
        figure, axes = pyplot.subplots(1, 2, figsize=(11, 5.6))
        # the lines of one problem: another order or precision is not one of them
        shown = [
            r for r in self.rows if r["total_s"] is not None and not r.get("double") and "Fashion" not in r["name"]
        ]
        styles = {name: f"C{k % 10}{'os^'[k // 10]}-" for k, name in enumerate(dict.fromkeys(r["name"] for r in shown))}
        for name, style in styles.items():
            for axis, key in zip(axes, ("total_s", "peak_mib"), strict=True):
                points = sorted((r["steps"], r[key]) for r in shown if r["name"] == name and r[key])
                if points:
                    axis.loglog(*zip(*points, strict=True), style, label=name, markersize=4)
        steps = sorted({r["steps"] for r in shown})
        for name, found in self.bare.items():
            limit = [n * sum(found.values()) * 1e-3 for n in steps]
            axes[0].loglog(steps, limit, "k--" if name == "eager" else "k:", label=f"bare kernels ({name})")
        for axis, label in zip(axes, ("seconds a training step", "peak memory, MiB"), strict=True):
            axis.set_xlabel("steps N")
            axis.set_ylabel(label)
            axis.grid(alpha=0.3)
        figure.legend(*axes[0].get_legend_handles_labels(), loc="lower center", ncols=3, fontsize=8, frameon=False)
        figure.tight_layout(rect=(0, 0.2, 1, 1))
        figure.savefig(self.path.with_suffix(".png"), dpi=150)
