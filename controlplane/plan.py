"""`python -m controlplane.plan`: `inart plan`, for scripts."""

from controlplane.cli.plan.command import main

if __name__ == "__main__":
    raise SystemExit(main())
