"""`inart plan` and `inart compare`."""
