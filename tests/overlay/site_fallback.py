"""One site of tests/overlay/test_sites_fallback.py: DiLoCo with a process group to fall back to. Says each round, and
trains on when it is told to.
"""

from __future__ import annotations

import os
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from overlay.sites import DiLoCo, init
from tests.overlay.site_training import flat, inner_step, make_model


def main(order: dict[str, Any], test: Connection) -> None:
    os.dup2(os.open(order["errors"], os.O_WRONLY | os.O_CREAT), 2)
    torch.set_num_threads(1)
    site, sites = int(order["site"]), int(order["sites"])
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{order['port']}", rank=site, world_size=sites)
    group = init(order["coordinator"], f"site{site}", listen=order["listen"], advertise=order["advertise"],
                 timeout=order["timeout"], fallback=dist.group.WORLD)  # fmt: skip
    assert group is not None
    model = make_model(site)
    outer = DiLoCo(model, group, **order["options"])
    inner = torch.optim.SGD(model.parameters(), lr=0.05)
    test.send({"round": outer.round})
    test.recv()
    step = 0
    while outer.round < order["rounds"]:
        inner_step(model, inner, site, step)
        step += 1
        if outer.step(samples=16):
            assert outer.last is not None
            test.send({"round": outer.round, "sites": outer.last.sites, "fell_back": outer.last.fell_back})
            test.recv()
    part = outer.fragments[0]
    np.savez(order["out"], model=flat(model), shared=np.concatenate([part.outer, part.momentum]))
    outer.close()
