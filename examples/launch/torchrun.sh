#!/bin/sh
# On every node of the job: the same line. Rank 0's node is the meeting point; all ranks of a node share one agent.
#   NODES=4 RANKS=8 MASTER=node1 INART_CONTROLLER=10.1.0.1:9600 examples/launch/torchrun.sh --how hook
set -eu
: "${NODES:?how many nodes}" "${MASTER:?name or address of one of them}" "${INART_CONTROLLER:?HOST:PORT}"
export INART_CONTROLLER
exec torchrun --nnodes "$NODES" --nproc-per-node "${RANKS:-1}" --rdzv-backend c10d \
    --rdzv-endpoint "$MASTER:${PORT:-29500}" --rdzv-id "${JOB:-inart}" \
    "$(dirname "$0")/../train_gpt.py" "$@"
