"""The planner: it turns a topology and a job into a plan, and a plan into rates and rules for switches. Pure functions,
without gRPC, threads or sockets.
"""
