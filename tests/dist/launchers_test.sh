#!/usr/bin/env bash
# Ranks that another launcher starts find each other, and compute what rondorun's do.
#   launchers_test.sh RONDORUN DIST_RANK torchrun|agent|srun|mpirun
# torchrun and srun: their variables, as they set them on one machine; agent: torchrun whose agent listens at MASTER_PORT.
# mpirun: Open MPI's own, where it is installed.
set -euo pipefail
rondorun=$1 rank_program=$2 launcher=$3
folder=$(mktemp -d)
ranks=() agent=
trap 'kill "${ranks[@]}" $agent 2>/dev/null || true; rm -rf "$folder"' EXIT
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT RONDO_STORE RONDO_STORE_TOKEN
export RONDO_NUM_THREADS=1

"$rondorun" --nproc-per-node 3 --no-prefix "$rank_program" losses >"$folder/ours" 2>"$folder/errors" || {
  cat "$folder/errors"
  exit 1
}

# A port that nobody uses, as far as one can know: torchrun's c10d rendezvous picks one in the same way.
free_port() { "$rondorun" --nproc-per-node 1 --no-prefix sh -c 'echo $MASTER_PORT'; }

# The command of a rank with torch.distributed.run's variables (its documentation, "Environment Variables").
torchrun_rank() {
  env RANK="$1" WORLD_SIZE=3 LOCAL_RANK="$1" LOCAL_WORLD_SIZE=3 GROUP_RANK=0 GROUP_WORLD_SIZE=1 ROLE_RANK="$1" \
    ROLE_WORLD_SIZE=3 ROLE_NAME=default MASTER_ADDR=localhost MASTER_PORT="$port" TORCHELASTIC_RESTART_COUNT=0 \
    TORCHELASTIC_MAX_RESTARTS=3 TORCHELASTIC_RUN_ID=none TORCHELASTIC_USE_AGENT_STORE="${2:-False}" "$rank_program" losses
}
agent_rank() { torchrun_rank "$1" True; }
# srun's (its manual, "OUTPUT ENVIRONMENT VARIABLES"), inside of an allocation whose own number of tasks is another.
srun_rank() {
  env SLURM_JOB_ID="$job" SLURM_JOBID="$job" SLURM_STEP_ID=0 SLURM_STEPID=0 SLURM_PROCID="$1" SLURM_LOCALID="$1" SLURM_NTASKS=8 \
    SLURM_NPROCS=8 SLURM_STEP_NUM_TASKS=3 SLURM_STEP_NUM_NODES=1 SLURM_STEP_TASKS_PER_NODE=3 SLURM_NNODES=1 SLURM_NODEID=0 \
    SLURM_STEP_NODELIST=here SLURM_LAUNCH_NODE_IPADDR=127.0.0.1 "$rank_program" losses
}

for attempt in 1 2 3; do
  code=0
  case $launcher in
    mpirun)
      command -v mpirun >/dev/null || { echo "skipped: there is no mpirun"; exit 77; }
      mpirun --allow-run-as-root --oversubscribe -n 3 "$rank_program" losses >"$folder/theirs" 2>"$folder/errors" || code=$?
      ;;
    torchrun | agent | srun)
      port=$(free_port) job=$$$attempt ranks=()
      if [ "$launcher" = agent ]; then
        python3 -c 'import socket, sys, time; s = socket.create_server(("", int(sys.argv[1]))); print("up", flush=True); time.sleep(600)' \
          "$port" >"$folder/agent" &
        agent=$!
        until grep -q up "$folder/agent"; do kill -0 $agent || continue 2; sleep 0.05; done
      fi
      for r in 0 1 2; do
        "${launcher}_rank" $r >"$folder/theirs.$r" 2>"$folder/errors.$r" &
        ranks+=($!)
      done
      for rank in "${ranks[@]}"; do wait "$rank" || code=$?; done
      cat "$folder"/theirs.? >"$folder/theirs"
      cat "$folder"/errors.? >"$folder/errors"
      ;;
    *) echo "which launcher?"; exit 2 ;;
  esac
  # Somebody else's program may have taken the port meanwhile.
  grep -q "Address already in use" "$folder/errors" || break
done
[ $code = 0 ] || { echo "exit code $code"; cat "$folder/errors"; exit 1; }
diff <(sort "$folder/ours") <(sort "$folder/theirs")
[ "$(wc -l <"$folder/theirs")" = 30 ] || { echo "that are not 10 losses of 3 ranks:"; cat "$folder/theirs"; exit 1; }
echo "30 losses of three ranks under $launcher: the bits of rondorun's"
