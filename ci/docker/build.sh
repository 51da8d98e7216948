#!/usr/bin/env bash
# Builds and pushes one image and tells its digest: build.sh REGISTRY/NAME DOCKERFILE [ARGUMENT=VALUE…]
# The digest goes into the build's meta-data (image:<name>), which `python -m ci pipeline --built` reads, and into an annotation with the line for the hardware file.
set -euo pipefail
target=${1:?usage: build.sh REGISTRY/NAME DOCKERFILE [ARGUMENT=VALUE...]}
dockerfile=${2:?usage: build.sh REGISTRY/NAME DOCKERFILE [ARGUMENT=VALUE...]}
shift 2
name=${target##*/}
arguments=()
for argument in "$@"; do arguments+=(--build-arg "$argument"); done
docker buildx build --push --provenance=false --file "$dockerfile" --tag "$target:${BUILDKITE_COMMIT:-latest}" \
  --metadata-file "image-$name.json" "${arguments[@]}" .
digest=$(sed -n 's/.*"containerimage.digest": *"\(sha256:[0-9a-f]\{64\}\)".*/\1/p' "image-$name.json" | head -n 1)
if [ -z "$digest" ]; then
  echo "build.sh: image-$name.json tells no digest of $target" >&2
  exit 1
fi
buildkite-agent meta-data set "image:$name" "$digest"
# shellcheck disable=SC2016  # Markdown, no expansion
printf 'image `%s`: `digest: %s` (matrix/hardware/*.yaml)\n' "$name" "$digest" | buildkite-agent annotate --style info --context "image-$name"
echo "$target@$digest"
