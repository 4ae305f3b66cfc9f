"""`python -m controlplane.deploy`: the command line of controlplane/cli/deploy.py."""

from controlplane.cli.deploy import main

if __name__ == "__main__":
    raise SystemExit(main())
