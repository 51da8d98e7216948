"""Every declared cell of every machine goes through its provider: configuration, environment of each process, engine options, and what is known to break."""

from __future__ import annotations

from functools import cache

import pytest

from matrix.loader import DeclaredCell, Matrix, load
from matrix.resolver import compose_cell
from vime.config.resolve import from_dict
from vime.config.tree import Config
from vime.loop.placement import devices_needed
from vime.platforms import launch, registry


@cache
def matrix() -> Matrix:
    return load()


def hardware_cells() -> list[DeclaredCell]:
    return [cell for cell in matrix().cells.values() if cell.hardware.value.platform != "cpu"]


def configuration(cell: DeclaredCell) -> Config:
    composed = compose_cell(matrix(), cell)
    values = dict(composed.values) | {"seed": 100}
    return from_dict(values).config


@pytest.mark.parametrize("hardware", sorted({cell.hardware.value.name for cell in hardware_cells()}))
def test_every_cell_of_a_machine_resolves_through_its_provider(hardware: str) -> None:
    cells = [cell for cell in hardware_cells() if cell.hardware.value.name == hardware]
    assert cells
    for cell in cells:
        config, declared = configuration(cell), cell.hardware.value
        platform = registry.get(config.platform)
        assert platform.name == declared.platform
        assert (platform.visible_devices_variable, platform.ray_resource) == (declared.visible_devices, declared.ray_resource), cell.id
        for role in launch.ROLES:
            environment = launch.environment(platform, role, config)
            assert all(environment.values()), cell.id
        launch.check_outer(platform, config, declared.environment)
        options = launch.engine_options(platform, config)
        assert options.get("enable_sleep_mode", False) == (config.placement.mode == "colocate"), cell.id
        assert platform.preflight(config, {}, {}) == [], cell.id
        assert devices_needed(config) > 0
