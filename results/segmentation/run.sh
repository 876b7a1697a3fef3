#!/usr/bin/env bash
# The paper's segmentation table (iCoseg, FCN, M = 1..5) at a scale that two cores train: width 16 instead of 128, 30
# epochs instead of 300, batches of 32 instead of 128, the light fusion preset; three seeds for M = 2, one for the rest.
# Besides, AMCL with balanced memory for M = 2, which is ours: the overlays are of it.
# Needs iCoseg in TORCHMCL_DATA. Runs go to the folder given and continue where they were stopped: run.sh RUNS
set -euo pipefail
runs=${1:?folder for the runs}
here=$(cd "$(dirname "$0")" && pwd)
train() { # method members seed [name]
  local out="$runs/${4:-$1}-$2-$3"
  [ -e "$out/metrics.json" ] && return
  [ -e "$out/config.yaml" ] && torchmcl train --resume "$out" && return
  torchmcl train --method "$1" --network fcn --width 16 --data icoseg --data.validation 0 --members "$2" --k 1 \
    --epochs 30 --batch-size 32 --drop-every 8 --preset light --seed "$3" --out "$out" \
    ${4:+--balance true}
}
for members in 2 3 1 4 5; do
  for seed in $([ "$members" = 2 ] && echo 0 1 2 || echo 0); do
    for method in ie smcl cmcl vmcl amcl; do train "$method" "$members" "$seed"; done
  done
done
for seed in 0 1 2; do train amcl 2 "$seed" amcl_balanced; done
python "$here/table.py" "$runs"
