"""Findings of one reading, bounded: a file with a million broken lines must not make a million notes."""

from __future__ import annotations

from collections import Counter

from reports.model import Note, NoteKind

MOST = 20  # notes kept of one kind


class Notes:
    """Collects notes; from the 21st of a kind on they are only counted."""

    def __init__(self) -> None:
        self._kept: list[Note] = []
        self.count: Counter[NoteKind] = Counter()

    def add(self, kind: NoteKind, text: str, where: str = "", metric: str = "") -> None:
        self.count[kind] += 1
        if self.count[kind] <= MOST:
            self._kept.append(Note(kind, text, where, metric))

    def finish(self) -> list[Note]:
        more = [Note(kind, f"and {count - MOST} more of this kind") for kind, count in self.count.items() if count > MOST]
        return self._kept + more
