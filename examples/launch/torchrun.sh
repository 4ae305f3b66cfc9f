#!/bin/sh
# On every node of the job: the same line. MASTER is the address of one of them; all ranks of a node share one agent.
#   NODES=4 RANKS=8 MASTER=10.0.0.1 INART_CONTROLLER=10.1.0.1:9600 examples/launch/torchrun.sh --how hook
# Where a node's own name does not resolve to an address that the others reach: LOCAL_ADDR=10.0.0.2.
set -eu
: "${NODES:?how many nodes}" "${MASTER:?address of one of them}" "${INART_CONTROLLER:?HOST:PORT}"
export INART_CONTROLLER
host=false # torchrun compares names, which need not be known
case " $(hostname -I) " in *" $MASTER "*) host=true ;; esac
exec torchrun --nnodes "$NODES" --nproc-per-node "${RANKS:-1}" ${LOCAL_ADDR:+--local-addr "$LOCAL_ADDR"} \
    --rdzv-backend c10d --rdzv-endpoint "$MASTER:${PORT:-29500}" --rdzv-conf "is_host=$host" \
    --rdzv-id "${JOB:-inart}" "$(dirname "$0")/../train_gpt.py" "$@"
