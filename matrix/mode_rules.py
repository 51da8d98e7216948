"""How settings compose to a mode: one per slot, in the order of the slots, none that excludes another."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from matrix.cell_id import CellId
from matrix.declarations import Exclusion, Modes, Setting, Slot
from matrix.fragments import Fragment, leaves
from matrix.problem import nearest
from matrix.yaml_file import Document, Path_


class ModeRules:
    """The vocabulary of `modes.yaml`; without one, no setting is known. `place` finds a setting's configuration in that file."""

    def __init__(self, modes: Modes | None = None, document: Document | None = None):
        self.document = document
        self.slots: tuple[Slot, ...] = tuple(modes.slots) if modes else ()
        self.excludes: tuple[Exclusion, ...] = tuple(modes.excludes) if modes else ()
        self.settings: dict[str, Setting] = {setting.name: setting for slot in self.slots for setting in slot.settings}
        self.slot_of: dict[str, Slot] = {setting.name: slot for slot in self.slots for setting in slot.settings}
        self.place: dict[str, Path_] = {
            setting.name: ("slots", index, "settings", position) for index, slot in enumerate(self.slots) for position, setting in enumerate(slot.settings)
        }
        self.order: dict[str, int] = {name: index for index, name in enumerate(setting.name for slot in self.slots for setting in slot.settings)}

    def faults(self) -> Iterator[tuple[tuple[str | int, ...], str]]:
        """What is wrong with the vocabulary itself: names used twice, exclusions that name nothing or can never match."""
        seen: dict[str, str] = {}
        for index, slot in enumerate(self.slots):
            for position, setting in enumerate(slot.settings):
                if setting.name in seen:
                    yield ("slots", index, "settings", position, "name"), f"'{setting.name}' is a setting of slot '{seen[setting.name]}' already"
                seen[setting.name] = slot.name
        for index, exclusion in enumerate(self.excludes):
            unknown = [name for name in exclusion.settings if name not in self.settings]
            if unknown:
                yield ("excludes", index, "settings"), f"no setting '{unknown[0]}'{nearest(unknown[0], self.settings)}"
                continue
            if len(exclusion.settings) == 1 and not exclusion.models and not exclusion.hardware:
                yield ("excludes", index, "settings"), f"{exclusion.settings[0]} alone is excluded everywhere: remove the setting, or name models or hardware"
            slots = [self.slot_of[name].name for name in exclusion.settings]
            if len(set(slots)) < len(slots):
                yield (
                    ("excludes", index, "settings"),
                    f"{' and '.join(exclusion.settings)} never meet: a mode holds one setting of a slot. Remove the exclusion",
                )

    def fragments(self, settings: tuple[str, ...]) -> list[Fragment]:
        """The configuration that a mode's settings stand for; a setting's `defaults` give way to what another setting of the mode sets."""
        found = [self.settings[name] for name in settings]
        said = {key for setting in found for key, _ in leaves(setting.config)}
        result = []
        for setting in found:
            at = self.place[setting.name]
            result.append(Fragment(setting.config, self.document, (*at, "config")))
            weak = {key: value for key, value in leaves(setting.defaults) if key not in said}
            if weak:
                result.append(Fragment(_nested(weak), self.document, (*at, "defaults")))
        return result

    def canonical(self, cell: CellId) -> CellId:
        """The id with its settings in canonical order (unknown ones last, as written)."""
        ordered = sorted(cell.settings, key=lambda name: self.order.get(name, len(self.order)))
        return CellId(cell.model, cell.hardware, tuple(ordered), cell.variant)

    def excluded(self, exclusion: Exclusion, cell: CellId) -> bool:
        """Whether an exclusion forbids a cell."""
        within = (not exclusion.models or cell.model in exclusion.models) and (not exclusion.hardware or cell.hardware in exclusion.hardware)
        return within and set(exclusion.settings) <= set(cell.settings)

    def mode_faults(self, cell: CellId) -> Iterator[tuple[str, str]]:
        """(field, message) for everything that is wrong with a cell's mode. Without a vocabulary (its file did not load) nothing is."""
        if not self.slots:
            return
        for name in cell.settings:
            if name not in self.settings:
                yield "id", f"'{cell}': no setting '{name}'{nearest(name, self.settings)}"
        known = [name for name in cell.settings if name in self.settings]
        for slot in self.slots:
            held = [name for name in known if self.slot_of[name].name == slot.name]
            if len(held) > 1:
                yield "id", f"'{cell}': {' and '.join(held)} are settings of one slot ({slot.name}): keep one"
            if slot.required and not held and len(known) == len(cell.settings):
                yield "id", f"'{cell}': the mode names no {slot.name}: add one of {', '.join(setting.name for setting in slot.settings)}"
        for name in known:
            beside = self.settings[name].needs_setting
            if beside and beside not in known:
                yield "id", f"'{cell}': {name} needs {beside} beside it"
        for index, exclusion in enumerate(self.excludes):
            if self.excluded(exclusion, cell):
                place = f" ({self.document.where(('excludes', index))})" if self.document else ""
                yield "id", f"'{cell}': {_excluded(exclusion)}{place}: {exclusion.reason}; remove the cell, or the exclusion"
        canonical = self.canonical(cell)
        one_each = len({self.slot_of[name].name for name in known}) == len(cell.settings)
        if canonical != cell and one_each:
            yield "id", f"'{cell}': the settings' canonical order is '{canonical.mode}': write '{canonical}'"


def _nested(values: dict[tuple[str, ...], Any]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in values.items():
        node = result
        for part in key[:-1]:
            node = node.setdefault(part, {})
        node[key[-1]] = value
    return result


def _excluded(exclusion: Exclusion) -> str:
    what = " and ".join(exclusion.settings)
    scope = [*exclusion.models, *exclusion.hardware]
    if not scope:
        return f"{what} exclude each other"
    return f"{what} {'are' if len(exclusion.settings) > 1 else 'is'} excluded for {' and '.join(scope)}"
