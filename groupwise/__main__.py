"""The command `groupwise`, which is also `python -m groupwise`."""

import sys


def main() -> None:
    try:  # this takes a moment, in which somebody may press Ctrl-C
        from groupwise.cli.main import main as run
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        sys.exit(3)
    run()


if __name__ == "__main__":
    main()
