"""The command as a module, for launchers that start one: ``python -m outpace``."""

from outpace.cli import main

if __name__ == "__main__":
    main()
