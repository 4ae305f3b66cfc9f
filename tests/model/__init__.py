"""Executable reference model of the protocol: switch, worker, root and a hostile network.

:class:`tests.model.switch.Switch` is what every target's behaviour is compared with; :mod:`tests.model.search` and
:mod:`tests.model.simulation` hunt for wrong sums and stuck states. The contract is ``docs/protocol.md``.
"""
