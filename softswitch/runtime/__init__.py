"""The C sources of the data plane. No Python: a package so that they are installed."""
