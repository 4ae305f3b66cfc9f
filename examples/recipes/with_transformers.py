"""Trains a small GPT-2 with Hugging Face's Trainer, and gradients that are summed in the network.

    torchrun --nnodes 4 --nproc-per-node 1 ... examples/recipes/with_transformers.py inart

The weights are random. The Trainer is built on accelerate, so make the process group before TrainingArguments.
"""

import json
import sys

import torch
import torch.distributed as dist
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import worker_agent.backend  # noqa: F401 (registers "inart")

dist.init_process_group(sys.argv[1])  # $INART_CONTROLLER or $INART_AGENT has the address.
torch.manual_seed(0)
tokens = torch.randint(0, 256, (64, 32))
trainer = Trainer(
    model=GPT2LMHeadModel(GPT2Config(vocab_size=256, n_positions=32, n_embd=64, n_layer=2, n_head=2)),
    args=TrainingArguments(
        output_dir="results/with_transformers", use_cpu=not torch.cuda.is_available(), per_device_train_batch_size=4,
        max_steps=6, logging_steps=1, save_strategy="no", report_to=[], disable_tqdm=True, lr_scheduler_type="constant",
    ),
    train_dataset=[{"input_ids": line, "labels": line} for line in tokens],
)  # fmt: skip
trainer.train()
if dist.get_rank() == 0:
    print(json.dumps([entry["loss"] for entry in trainer.state.log_history if "loss" in entry]))
dist.destroy_process_group()
