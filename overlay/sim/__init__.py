"""The overlay in simulated time: the same policies and the same execution of tasks over simulated links."""
