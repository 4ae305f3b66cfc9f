"""What training scripts use: DDP hook, backend, FSDP. Only modules of this package import torch."""
