"""`python -m controlplane.shell`: the command line of controlplane/cli/shell.py."""

from controlplane.cli.shell import main

if __name__ == "__main__":
    raise SystemExit(main())
