"""The living thing: agents and switches of a job that runs, and changes under it."""
