#!/usr/bin/env bash
# Makes room: clean-disk.sh SCRATCH FREE_GIB [--dry-run]. Oldest first, until FREE_GIB are free: results of builds, then downloads, then images nobody uses.
# Weights under cache/hf are kept: they take hours to fetch.
set -euo pipefail
scratch=${1:?usage: clean-disk.sh SCRATCH FREE_GIB [--dry-run]}
wanted=${2:?usage: clean-disk.sh SCRATCH FREE_GIB [--dry-run]}
dry=${3:-}
case $scratch in /|//*|"$HOME") echo "clean-disk.sh: $scratch is no scratch folder" >&2; exit 2 ;; /*) ;; *) echo "clean-disk.sh: $scratch is not absolute" >&2; exit 2 ;; esac
free_gib() { df -Pk "$scratch" | awk 'NR == 2 { print int($4 / 1048576) }'; }
remove() { # PATH
  echo "clean-disk.sh: removing $1"
  [ -n "$dry" ] || rm -rf -- "$1"
}
enough() { [ "$(free_gib)" -ge "$wanted" ]; }
enough && exit 0
while IFS= read -r -d '' entry; do
  enough && exit 0
  remove "${entry#* }"
done < <(find "$scratch" -mindepth 1 -maxdepth 6 -type d -path '*/results/*' -prune -mmin +120 -printf '%T@ %p\0' 2> /dev/null | sort -zn)
for folder in "$scratch/cache/pip" "$scratch/cache/tmp"; do
  enough && exit 0
  if [ -d "$folder" ]; then remove "$folder"; fi
done
enough && exit 0
if command -v docker > /dev/null && [ -z "$dry" ]; then docker image prune --all --force --filter until=168h; fi
