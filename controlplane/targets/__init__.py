"""Switch targets: each installs a RuleSet on a kind of switch, and removes it."""
