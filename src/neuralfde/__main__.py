"""``python -m neuralfde`` is the command ``neuralfde``."""

from neuralfde_command.app import main

if __name__ == "__main__":
    main()
