"""The running controller: membership of agents, jobs, failures, replanning, updates of switches."""
