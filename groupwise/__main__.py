"""The command `groupwise`, and python -m groupwise."""

from groupwise.cli.signals import leave_when_stopped


def main() -> None:
    leave_when_stopped()
    from groupwise.cli.main import main as run_command  # takes seconds

    run_command()


if __name__ == "__main__":
    main()
