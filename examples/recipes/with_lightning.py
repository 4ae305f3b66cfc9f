"""Trains with Lightning, and gradients that are summed in the network.

    torchrun --nnodes 4 --nproc-per-node 1 ... examples/recipes/with_lightning.py inart

Lightning makes the process group, with the backend that the strategy names.
"""

import json
import os
import sys

import lightning
import torch
from lightning.pytorch.strategies import DDPStrategy
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import worker_agent.backend  # noqa: F401 (registers "inart")


class Classifier(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
        self.losses: list[float] = []

    def training_step(self, batch, index):
        loss = cross_entropy(self.layers(batch[0]), batch[1])
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


lightning.seed_everything(0, verbose=False)
data = TensorDataset(torch.randn(256, 64), torch.randint(0, 10, (256,)))
model = Classifier()
trainer = lightning.Trainer(
    strategy=DDPStrategy(process_group_backend=sys.argv[1]),  # $INART_CONTROLLER or $INART_AGENT has the address.
    num_nodes=int(os.environ["WORLD_SIZE"]), devices=1, accelerator="auto", max_epochs=1,
    logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
)  # fmt: skip
trainer.fit(model, DataLoader(data, batch_size=16))
if trainer.is_global_zero:
    print(json.dumps(model.losses))
torch.distributed.destroy_process_group()
