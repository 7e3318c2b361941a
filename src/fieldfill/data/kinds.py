"""Kinds of output, recognised by their content: only what is all of the right kind may be replaced or deleted."""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from fieldfill.errors import InputError

__all__ = ["NETCDF", "PAGE", "PICTURE", "ZARR", "FileKind", "FolderKind", "Kind", "data_kind", "foreign", "json_object"]

NETCDF_SUFFIXES = (".nc", ".nc4", ".cdf", ".netcdf", ".h5")


class Kind(Protocol):
    """A kind of output, recognised by its content."""

    @property
    def name(self) -> str: ...

    def strange(self, path: Path, unfinished: bool = False) -> Path | None:
        """The first path that is not of this kind: ``path`` itself, or something in it; None if all of it is.

        ``unfinished``: what a killed process leaves of this kind counts as well.
        """


@dataclass(frozen=True)
class FileKind:
    """A regular file that starts with one of ``beginnings``, in upper or lower case; an empty file holds nothing."""

    name: str
    beginnings: tuple[bytes, ...]

    def strange(self, path: Path, unfinished: bool = False) -> Path | None:
        if path.is_symlink() or not path.is_file():
            return path
        with path.open("rb") as file:
            head = file.read(512)
        known = head.lstrip(b" \t\r\n\xef\xbb\xbf").lower().startswith(tuple(text.lower() for text in self.beginnings))
        # HDF5 writes its signature when it closes the file; until then there are zeros.
        blank = not head or (unfinished and not head.strip(b"\0"))
        return None if known or blank else path


@dataclass(frozen=True)
class FolderKind:
    """A folder whose entries are all among ``parts`` and whose file ``mark`` is a JSON object with the given key.

    ``parts`` maps names to kinds, or to None for any regular file.
    """

    name: str
    parts: Mapping[str, "Kind | None"]
    mark: str
    key: str

    def strange(self, path: Path, unfinished: bool = False) -> Path | None:
        if path.is_symlink() or not path.is_dir():
            return path
        for entry in sorted(path.iterdir()):
            if entry.name not in self.parts or entry.is_symlink():
                return entry
            inner = self.parts[entry.name]
            found = inner.strange(entry, unfinished=True) if inner else None if entry.is_file() else entry
            if found is not None:
                return found
        return None if unfinished or self.key in json_object(path / self.mark) else path


@dataclass(frozen=True)
class ZarrKind:
    """A Zarr store of format 2 or 3 in a directory: groups hold groups and arrays, arrays hold chunks."""

    name: str = "a Zarr store"

    METADATA = frozenset({"zarr.json", ".zgroup", ".zarray", ".zattrs", ".zmetadata"})
    NODES = frozenset({"zarr.json", ".zgroup", ".zarray"})
    CHUNK = re.compile(r"c|(c\.)?\d+(\.\d+)*")
    TORN = re.compile(r".*\.partial")  # a file that zarr had not yet given its name

    def strange(self, path: Path, unfinished: bool = False) -> Path | None:
        if path.is_symlink() or not path.is_dir():
            return path
        arrays: set[Path] = set()
        for root, folders, files in os.walk(path):
            here = Path(root)
            node = self.NODES & set(files)
            if (
                here.parent in arrays
                or ".zarray" in node
                or json_object(here / "zarr.json").get("node_type") == "array"
            ):
                arrays.add(here)
            elif not node and not unfinished:
                return here
            for name in files:
                chunk = self.CHUNK.fullmatch(name) and (here in arrays or unfinished)
                if not (chunk or name in self.METADATA or self.TORN.fullmatch(name)) or (here / name).is_symlink():
                    return here / name
            for name in folders:
                if (here / name).is_symlink():
                    return here / name
        return None


NETCDF = FileKind("a NetCDF file", (b"\x89HDF\r\n\x1a\n", b"CDF"))
ZARR = ZarrKind()
PAGE = FileKind("an HTML page", (b"<!doctype html", b"<html"))
PICTURE = FileKind("a PNG picture", (b"\x89PNG\r\n\x1a\n",))


def json_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file; an empty one if there is none."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def data_kind(path: str | os.PathLike[str]) -> Kind:
    """The kind of data set that the ending of a name stands for."""
    suffix = Path(path).suffix
    if suffix not in (*NETCDF_SUFFIXES, ".zarr"):
        raise InputError(f"unknown output format '{suffix}' of {path}; use .nc or .zarr")
    return ZARR if suffix == ".zarr" else NETCDF


def foreign(path: Path, kind: Kind, unfinished: bool = False) -> str | None:
    """Why ``path`` is not to be replaced or deleted: it is not of this kind, or not all of it."""
    found = kind.strange(path, unfinished)
    if found is None:
        return None
    if found == path:
        return f"{path} is in the way and is not {kind.name}; move it away or choose another name"
    return f"{path} also holds {found.relative_to(path)}, which fieldfill did not write; move it away"
