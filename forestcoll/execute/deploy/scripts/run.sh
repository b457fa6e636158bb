#!/usr/bin/env bash
# Runs a command with the plans switched on, and proves from the log that they were really used.
#
#   bash run.sh [COMMAND ...]     default: torchrun with the check that lies beside this script
#
# Several nodes: the same on each, with NODE_RANK=0, 1, ... and MASTER_ADDR=<first node>.
# MSCCL_LIBRARY=/path/to/lib.so is loaded in front of the command's own NCCL or RCCL.
# Exit: the command's own; 3 where it succeeded without the plans.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$here/env.sh"
unset NCCL_DEBUG_FILE MSCCLPP_LOG_FILE # the proof is read from what the command prints

log=$(mktemp)
trap 'rm -f "$log"' EXIT

checked=
if [ $# -eq 0 ]; then
  checked=--checked
  read -r nodes per_node check < <(python3 -c 'import json, sys
told = json.load(open(sys.argv[1]))
print(told["nodes"], told["ranks_per_node"], told["check"])' "$here/deploy.json")
  if [ "$per_node" = 0 ]; then
    echo "run.sh: the nodes hold different numbers of ranks: start check with your own launcher" >&2
    exit 2
  fi
  set -- torchrun --nnodes "$nodes" --node-rank "${NODE_RANK:-0}" \
    --nproc-per-node "$per_node" --master-addr "${MASTER_ADDR:-127.0.0.1}" \
    --master-port "${MASTER_PORT:-29500}" "$here/$check"
fi
if [ -n "${MSCCL_LIBRARY:-}" ]; then
  export LD_PRELOAD="$MSCCL_LIBRARY${LD_PRELOAD:+:$LD_PRELOAD}"
fi

"$@" 2>&1 | tee "$log"
exec python3 "$here/common.py" "$log" $checked
