"""The modules that training scripts use: DDP hook, backend and FSDP. Only modules of this package import torch."""
