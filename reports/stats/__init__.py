"""Arithmetic of the verdict: numbers in, numbers out. Nothing here reads a file or knows an outcome."""
