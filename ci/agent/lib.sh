# Shared by the hooks of an agent (docs/ci.md). Sourced, never run.
# What an agent owns stands in its own file, /etc/vime-agent/<agent name>.conf or VIME_AGENT_CONF:
#   VIME_AGENT_DEVICES=8,9,10,11,12,13,14,15   device numbers of this agent, as many as its class (tag devices=8)
#   VIME_AGENT_KIND=npu                        npu, cuda or cpu
#   VIME_AGENT_STATE=/var/lib/vime-agent       where pids are written down
#   VIME_AGENT_SCRATCH=/data/vime              checkouts, caches and results live here
#   VIME_AGENT_MIN_FREE_GIB=200                less is made free before a job, or the job is refused
# shellcheck shell=bash

say() { echo "vime-agent: $*"; }
refuse() { # MESSAGE: this job cannot run here; another agent may take it
  echo "vime-agent: $*" >&2
  exit 1
}

read_conf() {
  local conf=${VIME_AGENT_CONF:-/etc/vime-agent/${BUILDKITE_AGENT_NAME:-agent}.conf}
  [ -f "$conf" ] || refuse "$conf is missing: it says which devices this agent has"
  # shellcheck disable=SC1090  # written by whoever set up the host
  source "$conf"
  : "${VIME_AGENT_KIND:?$conf: VIME_AGENT_KIND is missing (npu, cuda or cpu)}"
  VIME_AGENT_DEVICES=${VIME_AGENT_DEVICES:-}
  VIME_AGENT_STATE=${VIME_AGENT_STATE:-/var/lib/vime-agent}
  VIME_AGENT_SCRATCH=${VIME_AGENT_SCRATCH:-/data/vime}
  VIME_AGENT_MIN_FREE_GIB=${VIME_AGENT_MIN_FREE_GIB:-100}
  pids="$VIME_AGENT_STATE/${BUILDKITE_AGENT_NAME:-agent}.pids"
}

count_devices() { # LIST: how many numbers it holds
  if [ -z "$1" ]; then echo 0; else tr ',' '\n' <<< "$1" | grep -c .; fi
}

free_gib() { df -Pk "$VIME_AGENT_SCRATCH" | awk 'NR == 2 { print int($4 / 1048576) }'; }

start_of() { # PID: its start time in clock ticks; nothing where there is no such process. A pid that was given to another process has another one.
  [ -r "/proc/$1/stat" ] && sed 's/.*) //' "/proc/$1/stat" | awk '{ print $20 }'
}

record() { # PID: write down a process of this job, with its start time
  mkdir -p "$VIME_AGENT_STATE"
  echo "$1 $(start_of "$1")" >> "$pids"
}

descendants() { # PID…: every process below these, deepest last
  local parent child
  for parent in "$@"; do
    echo "$parent"
    for child in $(ps -o pid= --ppid "$parent" 2> /dev/null); do descendants "$child"; done
  done
}

in_session() { # SID: every process of a session
  ps -eo pid=,sid= | awk -v sid="$1" '$2 == sid { print $1 }'
}

end_recorded() { # end what was written down and everything below it: asked first, killed after VIME_AGENT_GRACE_S. Nothing is ever ended by name.
  [ -f "$pids" ] || return 0
  local pid start now all=()
  while read -r pid start; do
    now=$(start_of "$pid" || true)
    # Another start time: the pid was given away, and what runs under it is not ours. None: its leader has ended, and its session may live on.
    if [ -n "$now" ] && [ "$now" != "$start" ]; then continue; fi
    if [ -n "$now" ]; then mapfile -t -O "${#all[@]}" all < <(descendants "$pid"); fi
    mapfile -t -O "${#all[@]}" all < <(in_session "$pid")
  done < "$pids"
  if [ "${#all[@]}" -gt 0 ]; then
    mapfile -t all < <(printf '%s\n' "${all[@]}" | sort -nu | grep -vx -e "$$" -e "$PPID" || true)
  fi
  if [ "${#all[@]}" -gt 0 ]; then
    say "ending ${#all[@]} processes that the last job left: ${all[*]}"
    kill -TERM "${all[@]}" 2> /dev/null || true
    local deadline=$((SECONDS + ${VIME_AGENT_GRACE_S:-10}))
    while kill -0 "${all[@]}" 2> /dev/null && [ "$SECONDS" -lt "$deadline" ]; do sleep 0.2; done
    kill -KILL "${all[@]}" 2> /dev/null || true
  fi
  rm -f "$pids"
}

holders() { # pids that hold one of this agent's devices open, whoever they belong to
  local number
  for number in ${VIME_AGENT_DEVICES//,/ }; do
    case $VIME_AGENT_KIND in
      npu) fuser "${VIME_AGENT_DEV:-/dev}/davinci$number" 2> /dev/null || true ;;
      cuda) fuser "${VIME_AGENT_DEV:-/dev}/nvidia$number" 2> /dev/null || true ;;
    esac
  done | tr -s ' \n' '\n' | sed '/^$/d' | sort -nu
}
