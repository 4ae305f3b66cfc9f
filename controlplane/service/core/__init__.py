"""The decisions of the service, without any effect: no thread, no lock, no socket, no file and no clock.

`membership.decide(state, event, now)` gives the next state and the actions to carry out. `service/roster.py` feeds the
events in, one at a time, and carries the actions out.
"""
