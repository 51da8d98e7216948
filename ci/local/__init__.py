"""A build on one machine: the pipelines of this checkout without Buildkite. docs/ci.md says what is the same and what is not."""
