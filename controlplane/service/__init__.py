"""The running controller: membership of agents, jobs, failures, replanning, and updates of switches."""
