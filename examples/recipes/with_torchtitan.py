"""Trains with FSDP2 as torchtitan does (its own `apply_fsdp_to_decoder`), with parameters and gradients through the
network.

    torchrun --nnodes 4 --nproc-per-node 1 ... examples/recipes/with_torchtitan.py inart

torchtitan uses an existing process group, and makes its meshes from it: make it first, here and in a copy of its
train.py.
"""

import json
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule
from torch.nn.functional import cross_entropy
from torchtitan.distributed.fsdp import apply_fsdp_to_decoder

import worker_agent.backend  # noqa: F401 (registers "inart")

WORDS, WIDTH = 256, 64


class Decoder(nn.Module):
    """A decoder with the parts that torchtitan shards one by one."""

    enable_weight_tying = False

    def __init__(self) -> None:
        super().__init__()
        self.tok_embeddings = nn.Embedding(WORDS, WIDTH)
        block = (WIDTH, 2, 4 * WIDTH, 0.0)
        self.layers = nn.ModuleDict({str(i): nn.TransformerEncoderLayer(*block, batch_first=True) for i in range(2)})
        self.norm = nn.LayerNorm(WIDTH)
        self.lm_head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, tokens):
        hidden = self.tok_embeddings(tokens)
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        for layer in self.layers.values():
            hidden = layer(hidden, src_mask=mask, is_causal=True)
        return self.lm_head(self.norm(hidden))


dist.init_process_group(sys.argv[1])  # $INART_CONTROLLER or $INART_AGENT has the address.
torch.manual_seed(0)
model = Decoder()
mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("fsdp",))
apply_fsdp_to_decoder(model, mesh, torch.float32, torch.float32, pp_enabled=False)
if sys.argv[1] == "gloo":  # gloo lacks PREMUL_SUM, which FSDP2 uses by default; InArt has it.
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
torch.manual_seed(1 + dist.get_rank())
losses = []
for _ in range(6):
    tokens = torch.randint(0, WORDS, (4, 33))
    loss = cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
if dist.get_rank() == 0:
    print(json.dumps(losses))
dist.destroy_process_group()
