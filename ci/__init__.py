"""Buildkite pipelines made of the matrix, the gate that decides over a build, and a way to run both on one machine. Imports matrix and reports only."""
