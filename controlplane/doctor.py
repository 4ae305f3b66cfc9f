"""`python -m controlplane.doctor`: the command line of controlplane/cli/doctor.py."""

from controlplane.cli.doctor import main

if __name__ == "__main__":
    raise SystemExit(main())
