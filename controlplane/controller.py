"""`python -m controlplane.controller`: the command line of controlplane/cli/controller.py."""

from controlplane.cli.controller import main

if __name__ == "__main__":
    raise SystemExit(main())
