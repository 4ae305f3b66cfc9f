"""The agents' engines, a parameter server's and any number of workers', on an adversarial network in virtual time."""
