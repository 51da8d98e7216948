#!/usr/bin/env bash
# Installs the packages of an Ascend host or image: bash ci/docker/install-npu.sh constraints/npu.txt
# In this order, because vllm's wheel asks for another torch than torch_npu does: torch with torch_npu; vllm from source without its device code, which then
# asks for no torch; triton away, because triton-ascend brings the module of that name; vllm-ascend; then everything else that is pinned.
set -euo pipefail
pins=${1:?usage: install-npu.sh PINS}
for script in /usr/local/Ascend/ascend-toolkit/set_env.sh /usr/local/Ascend/nnal/atb/set_env.sh; do
  # shellcheck disable=SC1090  # the vendor's own files, which read variables that may be unset
  if [ -f "$script" ]; then set +u; source "$script"; set -u; fi
done
pin() { # NAME: its line in the pins
  grep -iE "^$1==" "$pins" || { echo "install-npu.sh: $pins has no $1" >&2; exit 1; }
}
: "${SOC_VERSION:?set it to the chip (A2 ascend910b1, A3 ascend910_9391): vllm-ascend compiles kernels for it}"
export TORCH_DEVICE_BACKEND_AUTOLOAD=0
pip install "$(pin torch)" "$(pin torch_npu)" "$(pin transformers)"
VLLM_TARGET_DEVICE=empty pip install --no-binary vllm "$(pin vllm)" "$(pin torch)" "$(pin transformers)"
pip uninstall -y triton
pip install "$(pin vllm-ascend)" "$(pin triton-ascend)" "$(pin torch)" "$(pin torch_npu)"
rest=$(mktemp)
trap 'rm -f "$rest"' EXIT
grep -viE '^(#|torch==|torch_npu==|vllm==|vllm-ascend==|triton-ascend==|transformers==|$)' "$pins" > "$rest"
pip install -r "$rest" "$(pin torch)" "$(pin transformers)"
