"""`python -m controlplane.certificates`: the command line of controlplane/cli/certificates.py."""

from controlplane.cli.certificates import main

if __name__ == "__main__":
    raise SystemExit(main())
