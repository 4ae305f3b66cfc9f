"""Switch targets: what puts a RuleSet on a switch, and takes it off again."""
