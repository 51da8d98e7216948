"""Buildkite pipelines, the merge gate and images. Not built yet: what runs on every change today is `.ci/run`."""
