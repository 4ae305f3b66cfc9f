"""Switch targets: each installs rule sets on one kind of switch, and removes them."""
