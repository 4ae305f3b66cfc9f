"""Executable reference model of the protocol: switch, worker, parameter server (root) and a hostile network.

Every target's behaviour is compared with :class:`tests.model.switch.Switch`; :mod:`tests.model.search` and
:mod:`tests.model.simulation` look for wrong sums and stuck states. The contract is ``docs/protocol.md``.
"""
