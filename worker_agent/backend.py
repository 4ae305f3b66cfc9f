"""Registers the backend "inart" with torch.distributed when it is imported (see torch/backend.py)."""

from worker_agent.torch.backend import BackendOptions, InArtProcessGroup

__all__ = ["BackendOptions", "InArtProcessGroup"]
