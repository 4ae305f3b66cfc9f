"""`python -m controlplane.serve`: the command line of controlplane/cli/serve.py."""

from controlplane.cli.serve import main

if __name__ == "__main__":
    raise SystemExit(main())
