"""``python -m neuralfde`` is the command ``neuralfde``."""

from .cli.app import main

if __name__ == "__main__":
    main()
