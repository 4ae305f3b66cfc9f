"""Trains with DeepSpeed ZeRO (stage 1 or 2), with gradients and parameters through the network.

    torchrun --nnodes 4 --nproc-per-node 1 ... examples/recipes/with_deepspeed.py inart [STAGE]

DeepSpeed uses the existing process group. `overlap_comm` needs CUDA streams.
"""

import json
import sys

import deepspeed
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

import worker_agent.backend  # noqa: F401 (registers "inart")

dist.init_process_group(sys.argv[1])  # $INART_CONTROLLER or $INART_AGENT has the address.
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
stage = int(sys.argv[2]) if len(sys.argv) > 2 else 2
config = {
    "train_micro_batch_size_per_gpu": 16,
    "zero_optimization": {"stage": stage, "overlap_comm": torch.cuda.is_available()},
    "zero_allow_untested_optimizer": True,
}
engine, _, _, _ = deepspeed.initialize(model=model, optimizer=torch.optim.SGD(model.parameters(), 0.1), config=config)
torch.manual_seed(1 + dist.get_rank())
losses = []
for _ in range(6):
    inputs, targets = torch.randn(16, 64), torch.randint(0, 10, (16,))
    loss = cross_entropy(engine(inputs.to(engine.device)), targets.to(engine.device))
    engine.backward(loss)
    engine.step()
    losses.append(loss.item())
if dist.get_rank() == 0:
    print(json.dumps(losses))
dist.destroy_process_group()
