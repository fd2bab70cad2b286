"""The tour: ``python examples/demo.py``, the same as ``neuralfde demo``. Leaves a report in demo-output/."""

from neuralfde_command.app import app

if __name__ == "__main__":
    app(["demo"])
