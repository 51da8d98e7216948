"""Real Ray with made-up devices: what a bundle gets is numbered, seats are disjoint, and a worker sees exactly its devices. In a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}
SCRIPT = """
import json, os, sys
from dataclasses import replace
from pathlib import Path
from tests.rollout.child import config_of
from vime.loop.cluster import Cluster
from vime.loop.placement import place
from vime.platforms import registry

class Seen:
    def devices(self, variable):
        return os.environ.get(variable)

if __name__ == "__main__":
    name, mode = sys.argv[1:]
    config = config_of(Path("/m"), rollout={"engines": 2, "tensor_parallel": 2})
    config = replace(config, placement=replace(config.placement, devices_per_node=8, mode=mode), parallel=replace(config.parallel, data=4))
    platform = registry.get(name)
    with Cluster(config, platform) as cluster:
        import ray  # after the cluster's token is set

        seats = place(config, platform, 30)
        variable = platform.visible_devices_variable
        out = {}
        for kind, found in (("trainers", seats.trainers), ("engines", seats.engines)):
            environment = {index: {**seat.environment, platform.noset_variable: "1"} for index, seat in found.items()}
            actors = {index: ray.remote(Seen).options(**seat.options, runtime_env={"env_vars": environment[index]}).remote() for index, seat in found.items()}
            out[kind] = [ray.get(actors[index].devices.remote(variable)) for index in sorted(actors)]
        print(json.dumps(out))
"""


@pytest.mark.heavy
@pytest.mark.parametrize("name", ["npu", "cuda"])
@pytest.mark.parametrize("mode", ["colocate", "non-colocate"])
def test_every_worker_sees_its_own_devices(name: str, mode: str, tmp_path: Path) -> None:
    script = tmp_path / "seats.py"
    script.write_text(SCRIPT)
    done = subprocess.run([sys.executable, str(script), name, mode], capture_output=True, text=True, timeout=120, cwd=ROOT, env=ENVIRONMENT, check=False)
    assert done.returncode == 0, done.stderr
    seats = json.loads(done.stdout.splitlines()[-1])
    if mode == "colocate":
        assert seats == {"trainers": ["0", "1", "2", "3"], "engines": ["0,1", "2,3"]}
    else:
        taken = [*seats["trainers"], *",".join(seats["engines"]).split(",")]
        assert sorted(taken, key=int) == [str(number) for number in range(8)]
        assert seats["trainers"] == sorted(seats["trainers"], key=int)
