"""The demonstration: ``python examples/demo.py`` is ``neuralfde demo``. It writes a report to demo-output/."""

from neuralfde_command.app import app

if __name__ == "__main__":
    app(["demo"])
