"""Training across sites as people do it, on emulated links: DiLoCo over `inart.sites` beside synchronous training."""
