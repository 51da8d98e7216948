"""Reads names out of a Python package without importing it: classes, constants and aliases, followed through `from … import …`."""

from __future__ import annotations

import ast
import zipfile
from dataclasses import dataclass
from pathlib import Path

Root = Path | zipfile.Path


@dataclass(frozen=True)
class Found:
    """A definition: the module it stands in, and its node (a class, or the value of an assignment)."""

    module: str
    node: ast.AST


class Source:
    """Packages beneath a folder (site-packages, an unpacked wheel) or inside a wheel file."""

    def __init__(self, root: Path):
        self.root: Root = zipfile.Path(root) if root.is_file() else root
        self._modules: dict[str, dict[str, ast.AST] | None] = {}

    def find(self, module: str, name: str, depth: int = 8) -> Found | None:
        """The definition of `name` as seen in `module`; None when it comes from a package that is not beneath the root, or is not a plain definition."""
        names = self.names(module)
        node = None if names is None else names.get(name)
        if node is None or depth == 0:
            return None
        if isinstance(node, ast.ImportFrom):
            original = next(alias.name for alias in node.names if (alias.asname or alias.name) == name)
            return self.find(self._target(module, node), original, depth - 1)
        return Found(module, node)

    def require_class(self, module: str, name: str) -> tuple[str, ast.ClassDef]:
        """The class `name` of `module`, with the module that defines it. Raises LookupError when it is not there."""
        found = self.find(module, name)
        if found is None or not isinstance(found.node, ast.ClassDef):
            raise LookupError(f"no class {name} in {module} beneath {self.root}")
        return found.module, found.node

    def fields(self, module: str, name: str) -> dict[str, tuple[str, ast.AnnAssign]]:
        """The annotated fields of a dataclass, its bases' first, each with the module it is declared in. ClassVars and private names are left out."""
        module, node = self.require_class(module, name)
        out: dict[str, tuple[str, ast.AnnAssign]] = {}
        for base in reversed(node.bases):
            if isinstance(base, ast.Name) and (found := self.find(module, base.id)) and isinstance(found.node, ast.ClassDef):
                out.update(self.fields(module, base.id))
        for statement in node.body:
            if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name) or statement.target.id.startswith("_"):
                continue
            if not ast.unparse(statement.annotation).startswith(("ClassVar", "typing.ClassVar")):
                out[statement.target.id] = (module, statement)
        return out

    def names(self, module: str) -> dict[str, ast.AST] | None:
        """What a module defines at its top level (also beneath `if` and `try`); None when there is no such module."""
        if module not in self._modules:
            path = self._file(module)
            self._modules[module] = None if path is None else _definitions(ast.parse(path.read_text(encoding="utf-8")).body)
        return self._modules[module]

    def _file(self, module: str) -> Root | None:
        path = module.replace(".", "/")
        package, plain = self.root.joinpath(f"{path}/__init__.py"), self.root.joinpath(f"{path}.py")
        return package if package.is_file() else plain if plain.is_file() else None

    def _target(self, module: str, node: ast.ImportFrom) -> str:
        """The absolute name of the module that an import names, as seen from `module`."""
        if not node.level:
            return node.module or ""
        parts = module.split(".")
        path = self._file(module)
        keep = len(parts) - node.level + (1 if path is not None and path.name == "__init__.py" else 0)
        return ".".join([*parts[:keep], *([node.module] if node.module else [])])


def _definitions(body: list[ast.stmt]) -> dict[str, ast.AST]:
    out: dict[str, ast.AST] = {}
    for node in body:
        if isinstance(node, ast.ClassDef):
            out[node.name] = node
        elif isinstance(node, ast.ImportFrom):
            out.update({alias.asname or alias.name: node for alias in node.names})
        elif isinstance(node, ast.Assign):
            out.update({target.id: node.value for target in node.targets if isinstance(target, ast.Name)})
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            out[node.target.id] = node.value
        elif isinstance(node, ast.If):
            out = {**_definitions(node.orelse), **_definitions(node.body), **out}
        elif isinstance(node, ast.Try):
            out = {**_definitions(node.body), **out}
    return out
