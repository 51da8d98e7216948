"""Hugging Face directories: weights streamed in from safetensors and streamed out again. A rank reads only the slices it holds."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from vime.errors import RunError, UserError
from vime.models.base import HfConfig, Layout, Piece, Stored, WeightTable, local_weights

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
MAX_SHARD_BYTES = 4 * 2**30
BESIDE_WEIGHTS = ("*.json", "*.txt", "*.model", "*.jinja", "*.py", "*.tiktoken", "LICENSE*", "README*")  # copied with an export


def read_config(path: str | Path) -> dict[str, Any]:
    """The config.json of a model directory. Raises UserError when the directory or the file is missing or unreadable."""
    directory = Path(path)
    if not directory.is_dir():
        raise UserError(f"model.path {str(path)!r}: no such directory: give a Hugging Face model directory (config.json, tokenizer, *.safetensors)")
    file = directory / "config.json"
    if not file.is_file():
        raise UserError(f"{file}: no such file: model.path must be a Hugging Face model directory")
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{file}: not JSON: {error}") from None
    if not isinstance(found, dict):
        raise UserError(f"{file}: holds a {type(found).__name__}, not the keys of a model's configuration")
    return found


class Checkpoint:
    """The safetensors of a directory: which file holds a tensor, its shape, and slices of it. Files are opened when first needed."""

    def __init__(self, path: str | Path):
        self.directory = Path(path)
        self.index = self.directory / INDEX
        self.files = self._locate()
        self._open: dict[str, Any] = {}

    def _locate(self) -> dict[str, str]:
        """Tensor name -> file name."""
        if self.index.is_file():
            return dict(json.loads(self.index.read_text())["weight_map"])
        if not (self.directory / SINGLE).is_file():
            raise UserError(
                f"{self.directory}: neither {SINGLE} nor {INDEX}: weights must be safetensors (or set model.random_init_seed to train from random weights)"
            )
        with self._reader(SINGLE) as reader:
            return dict.fromkeys(reader.keys(), SINGLE)

    def _reader(self, file: str) -> Any:
        try:
            return safe_open(self.directory / file, framework="pt")
        except (OSError, SafetensorError) as error:
            raise UserError(f"{self.directory / file}: cannot be read: {error}; download it again") from None

    def source(self, name: str) -> Path:
        """The file a person should look at for this tensor."""
        return self.directory / self.files[name] if name in self.files else (self.index if self.index.is_file() else self.directory / SINGLE)

    def tensor(self, name: str) -> Any:
        """A safetensors slice object: `get_shape()`, indexing."""
        file = self.files[name]
        if file not in self._open:
            self._open[file] = self._reader(file)
        return self._open[file].get_slice(name)

    def find(self, name: str, table: WeightTable) -> Any:
        """As `tensor`, or what stands for it in the other form that the table knows; None when the checkpoint has neither."""
        stored = table.stored(name)
        if stored is not None and stored.name in self.files and (name != stored.name or tuple(self.tensor(name).get_shape()) == stored.shape):
            return PartOf(self.tensor(stored.name), stored)
        return self.tensor(name) if name in self.files else None


class PartOf:
    """A tensor inside another one, read as a safetensors slice object is."""

    def __init__(self, whole: Any, stored: Stored):
        self.whole, self.stored = whole, stored

    def get_shape(self) -> list[int]:
        found = self.whole.get_shape()
        if tuple(found) != self.stored.shape:
            return list(found)
        sizes = [part.stop - part.start for part in self.stored.part if isinstance(part, slice)]
        return [*sizes[:-2], *(sizes[-2:][::-1] if self.stored.turned else sizes[-2:])]

    def __getitem__(self, wanted: tuple[slice, ...]) -> torch.Tensor:
        inner = [*wanted[:-2], *(wanted[-2:][::-1] if self.stored.turned else wanted[-2:])]
        axes = iter(inner)
        picked = [part if isinstance(part, int) else _within(part, next(axes)) for part in self.stored.part]
        out = self.whole[tuple(slice(part, part + 1) if isinstance(part, int) else part for part in picked)]
        out = out.reshape([size for size, part in zip(out.shape, picked, strict=True) if not isinstance(part, int)])
        return out.transpose(-1, -2) if self.stored.turned else out


def _within(part: slice, wanted: slice) -> slice:
    return slice(part.start + wanted.start, part.start + wanted.stop)


def check_tensors(checkpoint: Checkpoint, table: WeightTable) -> None:
    """Every tensor of the table is there with its shape, and nothing else. Raises UserError naming file, tensor and both shapes."""
    for name, shape in table.shapes.items():
        if name in table.aliases:  # may be left out
            continue
        tensor = checkpoint.find(name, table)
        if tensor is None:
            hint = "; a model that ties its embeddings says so with tie_word_embeddings: true in config.json" if name == "lm_head.weight" else ""
            raise UserError(f"{checkpoint.source(name)}: tensor {name} {list(shape)} is missing{hint}")
        found = tuple(tensor.get_shape())
        if found != shape:
            raise UserError(f"{checkpoint.source(name)}: tensor {name} has shape {list(found)}, config.json makes it {list(shape)}")
    for name in table.aliases:
        if name in checkpoint.files:
            _same_as_original(checkpoint, name, table.aliases[name])
    forms = {stored.name for stored in map(table.stored, table.shapes) if stored is not None}
    known = table.shapes.keys() | table.aliases.keys() | forms
    extra = [name for name in checkpoint.files if name not in known and not table.ignored(name)]
    if extra:
        raise UserError(
            f"{checkpoint.source(extra[0])}: {len(extra)} tensors are not part of the model that config.json describes: {', '.join(sorted(extra)[:4])}"
        )


def _same_as_original(checkpoint: Checkpoint, alias: str, name: str) -> None:
    """Some exporters write a shared tensor a second time: the head of tied embeddings, the embedding and head of an MTP layer."""
    second, first = checkpoint.tensor(alias), checkpoint.tensor(name)
    if second.get_shape() != first.get_shape() or not torch.equal(second[:], first[:]):
        why = "config.json ties them (tie_word_embeddings)" if alias == "lm_head.weight" else "the model shares them"
        raise UserError(f"{checkpoint.source(alias)}: {alias} differs from {name}, but {why}")


@torch.no_grad()
def load_hf(
    model: torch.nn.Module, path: str | Path, table: WeightTable, layout: Layout, progress: Callable[[int, int, int], None] = lambda done, total, nbytes: None
) -> None:
    """Fill a bare GPTModel with the weights of a Hugging Face directory, cast to the parameters' dtype; rows that only pad the vocabulary become 0.

    `progress` is told after each parameter: parameters done, of how many, and its bytes.
    """
    checkpoint = Checkpoint(path)
    check_tensors(checkpoint, table)
    weights = list(local_weights(model))
    for done, (name, parameter) in enumerate(weights, 1):
        pieces = [piece for piece in table.pieces(name, layout) if not piece.alias]
        if sum(torch.Size(piece.shape).numel() for piece in pieces) < parameter.numel():
            parameter.zero_()
        for piece in pieces:
            copy_into(parameter, piece, checkpoint.find(piece.hf_name, table)[piece.hf_slice])
        progress(done, len(weights), parameter.nbytes)


def copy_into(parameter: torch.Tensor, piece: Piece, data: torch.Tensor) -> None:
    """Write one slice into its place in the parameter. Raises ValueError when their sizes differ."""
    view = piece.view(parameter)
    if view.numel() != data.numel():
        raise ValueError(f"{piece.hf_name}: a slice of {list(data.shape)} does not fill a view of {list(view.shape)}")
    view.copy_(data.reshape(view.shape))


class HfWriter:
    """Writes a Hugging Face directory under a temporary name and renames it when whole. Used by the one rank that writes."""

    def __init__(self, path: str | Path, source: str | Path, hf_config: HfConfig, sizes: dict[str, int], max_shard_bytes: int = MAX_SHARD_BYTES):
        """`source`: the directory whose tokenizer and other files are copied; `sizes`: bytes of every tensor, in the order they will be added."""
        self.path, self.temporary = Path(path), Path(f"{path}.partial")
        self.source, self.hf_config = Path(source), hf_config
        self.shards = _split(sizes, max_shard_bytes)
        self.waiting: dict[str, torch.Tensor] = {}
        self.dtype: torch.dtype | None = None
        shutil.rmtree(self.temporary, ignore_errors=True)
        self.temporary.mkdir(parents=True)

    def add(self, name: str, tensor: torch.Tensor) -> None:
        """The next tensor; a file is written when its last tensor has come."""
        self.dtype = tensor.dtype
        self.waiting[name] = tensor.detach().to("cpu").contiguous()
        if set(self.shards[0][1]) <= set(self.waiting):
            file, names = self.shards.pop(0)
            save_file(_own_storage({name: self.waiting.pop(name) for name in names}), self.temporary / file, metadata={"format": "pt"})

    def close(self, index: dict[str, str] | None, total_bytes: int) -> None:
        """Write index and config, copy the tokenizer's files, and put the directory in place."""
        if self.shards:
            raise ValueError(f"{len(self.shards)} files of {self.path} were never filled; first tensor {self.shards[0][1][0]}")
        for pattern in BESIDE_WEIGHTS:
            for file in self.source.glob(pattern):
                if file.is_file() and file.name not in ("config.json", INDEX):
                    shutil.copy(file, self.temporary)
        if index is not None:
            (self.temporary / INDEX).write_text(json.dumps({"metadata": {"total_size": total_bytes}, "weight_map": index}, indent=2))
        dtype = str(self.dtype).removeprefix("torch.")
        config = {key: value for key, value in self.hf_config.items() if key not in ("dtype", "torch_dtype")} | {"dtype": dtype}
        (self.temporary / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        replace_directory(self.temporary, self.path)


def export_hf(
    tensors: Iterator[tuple[str, torch.Tensor | None]],
    sizes: dict[str, int],
    path: str | Path,
    source: str | Path,
    hf_config: HfConfig,
    *,
    writes: bool,
    max_shard_bytes: int = MAX_SHARD_BYTES,
) -> None:
    """Drain `tensors` (a collective, see `vime.weights.exporter.whole_tensors`) into a directory on the rank that `writes`.

    Raises RunError(stage "export") when the disk refuses; the directory that stood there before stays.
    """
    if not writes:
        for _ in tensors:
            pass
        return
    try:
        writer = HfWriter(path, source, hf_config, sizes, max_shard_bytes)
        index = {name: file for file, names in writer.shards for name in names} if len(writer.shards) > 1 else None
        for name, tensor in tensors:
            assert tensor is not None
            writer.add(name, tensor)
        writer.close(index, sum(sizes.values()))
    except (OSError, SafetensorError) as error:
        shutil.rmtree(f"{path}.partial", ignore_errors=True)
        raise RunError("export", f"{path}: {error}") from error


def replace_directory(temporary: Path, path: Path) -> None:
    """Rename `temporary` to `path`; what stood at `path` is removed only afterwards."""
    old = path.with_name(f"{path.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if path.exists():
        path.rename(old)
    temporary.rename(path)
    shutil.rmtree(old, ignore_errors=True)


def _split(sizes: dict[str, int], limit: int) -> list[tuple[str, list[str]]]:
    """Tensors, in order, to files of at most `limit` bytes (a larger tensor has a file of its own)."""
    parts: list[list[str]] = [[]]
    filled = 0
    for name, size in sizes.items():
        if parts[-1] and filled + size > limit:
            parts.append([])
            filled = 0
        parts[-1].append(name)
        filled += size
    if len(parts) == 1:
        return [(SINGLE, parts[0])]
    return [(f"model-{number:05d}-of-{len(parts):05d}.safetensors", names) for number, names in enumerate(parts, 1)]


def _own_storage(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """safetensors refuses tensors that share storage: a view into Megatron's flat buffer, and a tensor's second name, are copied out."""
    out: dict[str, torch.Tensor] = {}
    seen: set[int] = set()
    for name, tensor in tensors.items():
        own = tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size() and tensor.data_ptr() not in seen
        out[name] = tensor if own else tensor.clone()
        seen.add(tensor.data_ptr())
    return out
