"""The checks in the order of docs/verdict.md: integrity, exactness, learning, convergence, resources; and the suspect."""
