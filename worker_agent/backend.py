"""`import worker_agent.backend` registers the backend "inart" with torch.distributed (torch/backend.py)."""

from worker_agent.torch.backend import BackendOptions, InArtProcessGroup

__all__ = ["BackendOptions", "InArtProcessGroup"]
