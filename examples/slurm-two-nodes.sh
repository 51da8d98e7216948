#!/usr/bin/env bash
# vime over two hosts under Slurm: sbatch examples/slurm-two-nodes.sh cell.yaml
# Each host starts one Ray node; the first also runs `vime train`. Ray's token lies in a file that all hosts see (the job's folder).
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --time=08:00:00
set -euo pipefail
recipe=${1:?usage: sbatch examples/slurm-two-nodes.sh RECIPE}
devices=${DEVICES_PER_NODE:-16}
resource=${RAY_RESOURCE:-NPU}
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
address=$(srun --nodes=1 --ntasks=1 --nodelist="$head" hostname -I | awk '{print $1}')
umask 077
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH="$SLURM_SUBMIT_DIR/.vime-ray-token-$SLURM_JOB_ID"
openssl rand -hex 32 > "$RAY_AUTH_TOKEN_PATH"
trap 'rm -f "$RAY_AUTH_TOKEN_PATH"' EXIT
common=(--block --disable-usage-stats)
if [ "$resource" = GPU ]; then common+=(--num-gpus="$devices"); else common+=(--resources="{\"$resource\": $devices}"); fi
srun --nodes=1 --ntasks=1 --nodelist="$head" ray start --head --node-ip-address="$address" --port=6379 "${common[@]}" &
sleep 15
srun --nodes=$((SLURM_NNODES - 1)) --ntasks=$((SLURM_NNODES - 1)) --exclude="$head" ray start --address="$address:6379" "${common[@]}" &
sleep 15
srun --overlap --nodes=1 --ntasks=1 --nodelist="$head" vime train "$recipe" \
  --set placement.nodes="$SLURM_NNODES" --set placement.ray_address="$address:6379" --set placement.devices_per_node="$devices"
