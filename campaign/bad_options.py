"""Bad options of the command line, and what else it cannot work with; all end with exit code 2."""

from __future__ import annotations

import torch

#: Numbers that no count can be, and texts that no name can be, for the options of each command.
COUNTS = ("0", "-1", "2.5", "many", "nan", "")
COMMANDS: dict[str, dict[str, tuple[str, ...]]] = {
    "bench": {
        "--steps": COUNTS, "--batch": COUNTS, "--width": COUNTS, "--repeats": COUNTS,
        "--order": ("0", "-1", "nan", "x", "3"),
        "--method": ("nonsense", "dopri5"), "--device": ("nonsense", "cuda:99", ""),
        "--seed": ("x",), "--nonsense": ("1",),
    },
    "run lotka-volterra": {
        "--epochs": COUNTS, "--lr": ("-1", "nan", "x"), "--batch-size": COUNTS, "--trajectories": COUNTS,
        "--horizon": ("0", "-1", "nan"), "--samples": COUNTS, "--steps": COUNTS, "--method": ("nonsense",),
        "--adjoint": ("exakt",), "--optimiser": ("adm",), "--observe": ("wolf",), "--order": ("0", "2.5", "nan"),
        "--noise": ("-1", "nan"), "--repeats": COUNTS, "--refine": COUNTS, "--intervals": ("boot",), "--seed": ("x",),
        "--nois": ("1",), "--learn-order --order-guess": ("0", "2", "nan"), "--resume": ("",),
        "--out": ("/proc/nowhere", "/dev/null/x"),
    },
    "run lynx-hare": {"--first": ("1800", "x"), "--every": ("0", "-1"), "--ahead": ("0", "-3"),
                      "--steps-per-year": ("0", "-1"),
                      "--order-guess": ("0", "2")},
    "run relaxation": {"": ("",), "--path": ("/nonexistent", "/dev/null"), "--path /dev/null --model": ("nonsense",)},
    "run neural-field": {"--epochs": COUNTS, "--width": COUNTS, "--lr": ("-1", "nan"), "--batch-size": ("0", "-5"),
                         "--method": ("nonsense",), "--noise": ("-1", "nan"), "--trajectories": ("0", "-1")},
    "run images": {"--dataset": ("nonsense",), "--dataset mnist --data": ("/nonexistent",), "--epochs": ("-1", "x"),
                   "--batch-size": ("-5", "x"), "--ema": ("2", "nan"), "--lr": ("-1", "nan"),
                   "--schedule": ("nonsense",),
                   "--augment": ("nonsense",), "--device": ("nonsense", "cuda"), "--precision": ("float8",),
                   "--order": ("3", "-1"),
                   "--holdout": ("2", "-1"), "--method": ("nonsense",), "--history": ("nonsense",),
                   "--storage": ("nonsense",),
                   "--threads": ("-1",), "--repeats": ("0", "-1"), "--coarse": ("x:y",), "--warmup": ("2", "-1")},
    "run graphs": {"--dataset": ("nonsense",), "--variant": ("nonsense",), "--data": ("/nonexistent",),
                   "--settings": ("nonsense",),
                   "--seeds": ("0", "-1", "x"), "--orders": ("a,b", ""), "--device": ("nonsense", "cuda")},
    "run forecasting": {"--sets": ("nonsense", ""), "--horizons": ("25", "0", "x", "nan"), "--models": ("lstm",),
                        "--data": ("/nonexistent",), "--seeds": COUNTS, "--iterations": COUNTS, "--lr": ("-1", "nan")},
    "run image-cost": {"--device": ("nonsense", "cuda"), "--nonsense": ("1",)},
    "run graph-cost": {"--device": ("nonsense", "cuda"), "--nonsense": ("1",)},
    "fit": {"": ("", "nowhere.csv", "empty.csv", "words.csv", "two.csv", "."),
            "data.csv --model": ("nonsense", "relaxaton", "nowhere.py:f",
            "model.py:nothing", "model.py", "model.py:bare", "broken.py:f", "model.py:wrong"),
            "data.csv --skip": ("-1", "x", "999"), "data.csv --time": ("nothing", "0", "9"),
            "data.csv --values": ("nothing", "9", "1,1", "u,nothing"), "data.csv --order": ("0", "1.5", "nan", "x"),
            "data.csv --bootstrap": ("-1", "x", "10001", "2.5"), "data.csv --steps": ("-1", "1", "x"),
            "data.csv --method": ("nonsense", "rk4"), "data.csv --start": ("x", "tau", "tau=x", "nothing=1", "tau=-1"),
            "data.csv --log --values": ("v",), "data.csv --out": ("/dev/null/x",), "data.csv --nonsense": ("1",),
            "data.csv --model lotka-volterra --values": ("u",), "data.csv nowhere.csv": ("",)},
    "solve": {"": ("", "nonsense", "relaxation", "nowhere.py:f", "model.py:nothing", "model.py", "broken.py:f"),
              "model.py:decay --initial": ("x", "", "nan", "1,,2"), "model.py:decay --end": ("0", "-1", "nan", "x"),
              "model.py:decay --order": ("0", "3", "nan", "x"), "model.py:decay --set": ("x", "nothing=1", "rate=x"),
              "model.py:decay --rows": ("0", "-1", "x"), "model.py:decay --steps": ("-1", "x", "2.5"),
              "model.py:decay --method": ("nonsense",), "model.py:decay --out": ("/dev/null/x",),
              "model.py:decay --nonsense": ("1",), "model.py:wrong --initial": ("1",),
              "model.py:raises --initial": ("1",)},
    "demo": {"--nonsense": ("1",), "--seed": ("x",), "--out": ("/dev/null/x",)},
    "run": {"nonsense": ("",), "lotka-voltera": ("",)},
    "nonsense": {"": ("",)},
    "dmo": {"": ("",)},
}  # fmt: skip

#: What lies in the folder of a command.
FILES = {
    "data.csv": "t,u,v\n" + "".join(f"{k / 4},{0.9**k},{(-1) ** k}\n" for k in range(1, 20)),
    "two.csv": "t,u\n0,1\n1,2\n", "empty.csv": "", "words.csv": "t,u\n0,1\none,two\n2,3\n3,4\n4,5\n",
    "broken.py": "def f(t, z, rate=1.0:\n",
    "model.py": "def decay(t, z, rate=1.0):\n    return -rate * z\n\n\ndef bare(t, z):\n    return -z\n\n\n"
    "def wrong(t, z, rate=1.0):\n    return 3\n\n\ndef raises(t, z, rate=1.0):\n    raise ArithmeticError\n",
}  # fmt: skip


def lines() -> list[list[str]]:
    """Every command line, as a list of arguments."""
    found = []
    for command, options in COMMANDS.items():
        for option, values in options.items():
            for value in values:
                if value == "cuda" and torch.cuda.is_available():
                    continue
                text = [*command.split(), *option.split()]
                found.append([*text, value] if value or (option.startswith("--") and option != "--resume") else text)
    return found
