"""The C sources of the data plane. It is a package without Python modules, so that the sources are installed."""
