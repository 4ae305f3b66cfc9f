"""One site of tests/overlay/test_sites_fallback.py: DiLoCo with a process group to fall back to. Says each round, and
trains on when it is told to by a line.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from overlay.sites import DiLoCo, init
from tests.overlay.site_training import flat, inner_step, make_model


def main(order: dict[str, Any]) -> None:
    site, sites = int(order["site"]), int(order["sites"])
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{order['port']}", rank=site, world_size=sites)
    group = init(order["coordinator"], f"site{site}", listen=order["listen"], advertise=order["advertise"],
                 timeout=order["timeout"], fallback=dist.group.WORLD)  # fmt: skip
    assert group is not None
    model = make_model(site)
    outer = DiLoCo(model, group, **order["options"])
    inner = torch.optim.SGD(model.parameters(), lr=0.05)
    print(json.dumps({"round": outer.round}), flush=True)
    sys.stdin.readline()
    step = 0
    while outer.round < order["rounds"]:
        inner_step(model, inner, site, step)
        step += 1
        if outer.step(samples=16):
            assert outer.last is not None
            said = {"round": outer.round, "sites": outer.last.sites, "fell_back": outer.last.fell_back}
            print(json.dumps(said), flush=True)
            sys.stdin.readline()
    part = outer.fragments[0]
    np.savez(order["out"], model=flat(model), shared=np.concatenate([part.outer, part.momentum]))
    outer.close()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(json.loads(sys.argv[1]))
