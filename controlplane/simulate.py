"""`python -m controlplane.simulate`: the command line of controlplane/cli/simulate.py."""

from controlplane.cli.simulate import main

if __name__ == "__main__":
    raise SystemExit(main())
