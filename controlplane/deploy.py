"""`python -m controlplane.deploy`: `inart deploy`, for scripts."""

from controlplane.cli.deploy import main

if __name__ == "__main__":
    raise SystemExit(main())
