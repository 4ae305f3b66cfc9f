"""Trains with Hugging Face accelerate, and gradients that are summed in the network.

    torchrun --nnodes 4 --nproc-per-node 1 ... examples/recipes/with_accelerate.py inart

accelerate chooses gloo or NCCL by itself and refuses a backend that it does not know, but it accepts an existing
process group: make it first. The rest of the script stays as it is. `gloo` instead of `inart` runs the same without
InArt.
"""

import json
import sys

import torch
import torch.distributed as dist
from accelerate import Accelerator
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import worker_agent.backend  # noqa: F401 (registers "inart")

dist.init_process_group(sys.argv[1])  # $INART_CONTROLLER or $INART_AGENT has the address.
accelerator = Accelerator(cpu=not torch.cuda.is_available())
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
data = TensorDataset(torch.randn(256, 64), torch.randint(0, 10, (256,)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, batches = accelerator.prepare(model, optimizer, DataLoader(data, batch_size=16))
losses = []
for inputs, targets in batches:
    loss = cross_entropy(model(inputs), targets)
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    losses.append(accelerator.reduce(loss.detach(), "mean").item())
accelerator.print(json.dumps(losses))
dist.destroy_process_group()
