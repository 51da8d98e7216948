"""How settings compose to a mode: one per slot, in the order of the slots, none that excludes another."""

from __future__ import annotations

from collections.abc import Iterator

from matrix.cell_id import CellId
from matrix.declarations import Exclusion, Modes, Setting, Slot
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
            setting.name: ("slots", index, "settings", position, "config")
            for index, slot in enumerate(self.slots)
            for position, setting in enumerate(slot.settings)
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
            slots = [self.slot_of[name].name for name in exclusion.settings]
            if len(set(slots)) < len(slots):
                yield (
                    ("excludes", index, "settings"),
                    f"{' and '.join(exclusion.settings)} never meet: a mode holds one setting of a slot. Remove the exclusion",
                )

    def canonical(self, cell: CellId) -> CellId:
        """The id with its settings in canonical order (unknown ones last, as written)."""
        ordered = sorted(cell.settings, key=lambda name: self.order.get(name, len(self.order)))
        return CellId(cell.model, cell.hardware, tuple(ordered), cell.variant)

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
        for exclusion in self.excludes:
            if set(exclusion.settings) <= set(known):
                yield "id", f"'{cell}': {' and '.join(exclusion.settings)} exclude each other: {exclusion.reason}"
        canonical = self.canonical(cell)
        one_each = len({self.slot_of[name].name for name in known}) == len(cell.settings)
        if canonical != cell and one_each:
            yield "id", f"'{cell}': the settings' canonical order is '{canonical.mode}': write '{canonical}'"
