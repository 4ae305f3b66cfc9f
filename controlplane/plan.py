"""`python -m controlplane.plan`: the command line of controlplane/cli/plan/command.py."""

from controlplane.cli.plan.command import main

if __name__ == "__main__":
    raise SystemExit(main())
