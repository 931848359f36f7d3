"""Large arrays beside the server: the server holds size and checksum, a folder or an object store the bytes.

A blob's name is made of its group, the attempt and the checksum of its content, so what a fenced holder or a repeat
writes never changes what another reads. No name comes from a payload: a reference has none.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import re
import secrets
import urllib.parse
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from slime_rl.buffer.envelope import Bytes, crc_of
from slime_rl.config import without_credentials
from slime_rl.errors import CodecError, ConfigError, StoreError

_NAME = re.compile(r"(\d+)-\d+-[0-9a-f]{8}(\.[0-9a-f]+\.part)?")


class Blobs(Protocol):
    """Where blobs lie. Methods raise StoreError when the store fails."""

    def put(self, name: str, parts: Iterable[Bytes]) -> None:
        """Store a blob as a whole, durably; again does no harm."""
        ...

    def get(self, name: str, *, limit: int) -> bytes:
        """The first `limit` bytes of a blob; raises FileNotFoundError if there is none."""
        ...

    def names(self) -> list[str]:
        """Every name of the run."""
        ...

    def remove(self, names: Iterable[str]) -> None:
        """Delete blobs, if they are there."""
        ...


@dataclass(frozen=True, slots=True)
class BlobRef:
    """What is known of a group's blob without reading it: `size` in bytes and CRC-32 as stored."""

    group: int
    attempt: int
    size: int
    crc: int

    @property
    def name(self) -> str:
        return f"{self.group:d}-{self.attempt:d}-{self.crc:08x}"


def store(blobs: Blobs, group: int, attempt: int, parts: Sequence[Bytes]) -> BlobRef:
    """Make a blob durable before anything refers to it; raises StoreError."""
    ref = BlobRef(group, attempt, size=sum(memoryview(part).nbytes for part in parts), crc=crc_of(parts))
    blobs.put(ref.name, parts)
    return ref


def load(blobs: Blobs, ref: BlobRef, *, key: str) -> bytes:
    """A blob's bytes; raises CodecError, which names blob and key, if it is missing, cut, or not what was stored."""
    try:
        found = blobs.get(ref.name, limit=ref.size + 1)
    except FileNotFoundError as error:
        raise CodecError(f"{key}: its blob {ref.name} is missing in {blobs}") from error
    if len(found) != ref.size:
        longer = "more than " if len(found) > ref.size else ""
        raise CodecError(f"{key}: its blob {ref.name} in {blobs} has {longer}{len(found)} bytes, expected {ref.size}")
    if crc_of([found]) != ref.crc:
        raise CodecError(f"{key}: its blob {ref.name} in {blobs} is damaged: its checksum is wrong")
    return found


def delete(blobs: Blobs, group: int, attempt: int) -> None:
    """Delete the blobs of one attempt at a group; raises StoreError."""
    begin = f"{group:d}-{attempt:d}-"
    blobs.remove([name for name, _ in _owners(blobs) if name.startswith(begin)])


async def sweep(blobs: Blobs, live: Callable[[Sequence[int]], Awaitable[Collection[int]]]) -> None:
    """Delete the blobs of groups that are over: committed, dropped, or left behind by a holder that crashed.

    `live` says which of some ids the buffer still knows. It is asked after the names were listed, so a group that
    begins meanwhile loses nothing. Raises StoreError.
    """
    owners = await asyncio.to_thread(lambda: list(_owners(blobs)))
    found = sorted({id for _, id in owners})
    if found:
        known = frozenset(await live(found))
        await asyncio.to_thread(blobs.remove, [name for name, id in owners if id not in known])


def open_blobs(place: str, run_id: str) -> Blobs:
    """The blobs of one run in a folder, or at a URL that fsspec opens; raises ConfigError for one that it does not."""
    name = "slime_rl-" + urllib.parse.quote(run_id, safe="")
    scheme, slashes, path = place.partition("://")
    if not slashes or scheme == "file":
        return FolderBlobs(Path(path if slashes else place) / name)
    return RemoteBlobs(place, name)


class FolderBlobs:
    """Blobs as files of one folder, on this machine or shared."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.absolute()

    def __str__(self) -> str:
        return str(self._folder)

    def put(self, name: str, parts: Iterable[Bytes]) -> None:
        aside = self._folder / f"{name}.{secrets.token_hex(4)}.part"
        with _named_faults(f"cannot write blob {name}", self):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            try:
                with aside.open("xb", buffering=0) as file:
                    for part in parts:
                        _write_all(file.fileno(), part)
                    os.fsync(file.fileno())
                # Deleted meanwhile: the group is over, and who fills it is told so by the buffer.
                with contextlib.suppress(FileNotFoundError):
                    aside.rename(self._folder / name)
                _sync_folder(self._folder)
            finally:
                aside.unlink(missing_ok=True)

    def get(self, name: str, *, limit: int) -> bytes:
        with _named_faults(f"cannot read blob {name}", self), (self._folder / name).open("rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            return b"".join(_read_all(file.fileno(), min(size, limit)))

    def names(self) -> list[str]:
        with _named_faults("cannot list the blobs", self):
            try:
                return os.listdir(self._folder)
            except FileNotFoundError:
                return []

    def remove(self, names: Iterable[str]) -> None:
        with _named_faults("cannot delete blobs", self):
            for name in names:
                (self._folder / name).unlink(missing_ok=True)


class RemoteBlobs:
    """Blobs under a URL that fsspec opens, such as s3://bucket/prefix; its credentials come from their usual places."""

    def __init__(self, url: str, name: str) -> None:
        fsspec: Any = importlib.import_module("fsspec")
        try:
            self._files, root = fsspec.core.url_to_fs(url)
        except (ImportError, ValueError) as error:
            expected = f"must be a folder or a URL that fsspec can open ({error})"
            raise ConfigError("buffer.blobs", expected, without_credentials(url)) from error
        self._root = f"{root.rstrip('/')}/{name}"
        self._shown = f"{without_credentials(url).rstrip('/')}/{name}"

    def __str__(self) -> str:
        return self._shown

    def put(self, name: str, parts: Iterable[Bytes]) -> None:
        with _named_faults(f"cannot write blob {name}", self):
            self._files.makedirs(self._root, exist_ok=True)
            self._files.pipe_file(f"{self._root}/{name}", b"".join(parts))

    def get(self, name: str, *, limit: int) -> bytes:
        with _named_faults(f"cannot read blob {name}", self):
            return self._files.cat_file(f"{self._root}/{name}", start=0, end=limit)

    def names(self) -> list[str]:
        with _named_faults("cannot list the blobs", self):
            self._files.invalidate_cache(self._root)
            try:
                return [path.rpartition("/")[2] for path in self._files.ls(self._root, detail=False)]
            except FileNotFoundError:
                return []

    def remove(self, names: Iterable[str]) -> None:
        with _named_faults("cannot delete blobs", self):
            for name in names:
                with contextlib.suppress(FileNotFoundError):
                    self._files.rm_file(f"{self._root}/{name}")


@contextlib.contextmanager
def _named_faults(what: str, blobs: Blobs) -> Iterator[None]:
    """Turns faults of the store into a StoreError; that a blob is not there stays FileNotFoundError."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise StoreError(f"{what} in {blobs}: {error}") from error


def _owners(blobs: Blobs) -> Iterator[tuple[str, int]]:
    """The names that are ours, each with the id of its group."""
    for name in blobs.names():
        if match := _NAME.fullmatch(name):
            yield name, int(match[1])


def _write_all(file: int, part: Bytes) -> None:
    view = memoryview(part).cast("B")
    while view:
        view = view[os.write(file, view) :]


def _read_all(file: int, size: int) -> Iterator[bytes]:
    """Up to `size` bytes, in the pieces that the system returns (below 2 GiB each)."""
    while size and (piece := os.read(file, size)):
        yield piece
        size -= len(piece)


def _sync_folder(folder: Path) -> None:
    """Make a rename durable."""
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
