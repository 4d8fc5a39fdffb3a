"""Images on their way into a store: read once from each input, kept over interruptions.

Beside the output lies a hidden folder with two files an input (a tarball, a parquet file, ...): a
blob of images, one after another, and an index. The index is written last and in one step, so an
input is in the spool whole or not at all. It carries a fingerprint of the input: one that has
changed is read again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple, Self

from filelock import FileLock, Timeout

from pfl_bench.data import parse_json, write_atomically
from pfl_bench.data.temporary import remove_leftovers
from pfl_bench.data.threads import map_in_order
from pfl_bench.types import DataError
from tasks.common.vision.pictures import PictureError, opened, read_to_end

# Kinds that make an image unusable; all other kinds are reported only.
BAD_KINDS = ("missing", "unreadable", "wrong_size", "contradictory", "without_user")
NO_IMAGE = "other_files"
# Pixels of 256 x 256 x 3 take 197 kB; more than this is no small image, and is not read.
MAX_IMAGE_BYTES = 4 << 20

GREY_MODES = ("1", "L", "LA", "I", "F")
JPEG_FORMATS = ("JPEG", "MPO")

Check = Literal["decode", "headers"]


@dataclass(frozen=True, slots=True)
class Finding:
    """Fault or peculiarity of an image.

    Attributes:
        kinds: Names such as "grey"; empty for an RGB JPEG of the right size.
        detail: The particulars, for messages.
    """

    kinds: tuple[str, ...] = ()
    detail: str = ""

    @property
    def is_bad(self) -> bool:
        """Whether the image cannot be used."""
        return any(kind in BAD_KINDS for kind in self.kinds)


class RawImage(NamedTuple):
    """An image as a source gives it.

    Attributes:
        image_id: The published id; the file's name for a file that is no image.
        data: The encoded image; None if it was not even read.
        finding: What the source found out by itself; None if the bytes are to be examined.
        suffix: Of the file IMAGE_ID.jpg that has the bytes, from which they are read again.
    """

    image_id: str
    data: bytes | None
    finding: Finding | None = None
    suffix: str | None = None


def too_large(size: int) -> Finding:
    """The finding of an image that is not read because of its size in bytes."""
    return Finding(("unreadable",), f"{size} bytes; images of this data set have about 14,000")


def examine(data: bytes, side: int, check: Check) -> Finding:
    """Look at one encoded image: JPEG or PNG, whatever the file's name said.

    Its sides must have ``side`` pixels. "decode" also finds files that are cut; "headers" believes
    the header.
    """
    kinds = []
    try:
        with opened(data, ("JPEG", "PNG"), "JPEG or PNG picture") as image:
            if image.size != (side, side):
                width, height = image.size
                return Finding(("wrong_size",), f"{width} x {height}")
            if image.format not in JPEG_FORMATS:
                kinds.append("png")
            if image.mode in GREY_MODES or image.mode.startswith("I;"):
                kinds.append("grey")
            elif image.mode != "RGB":
                kinds.append("cmyk" if image.mode == "CMYK" else "other_mode")
            if check == "decode":
                read_to_end(image)
    except PictureError as error:
        return Finding(("unreadable",), str(error))
    return Finding(tuple(kinds))


def examined(images: Iterable[RawImage], side: int, check: Check) -> Iterator[RawImage]:
    """Look at images on several threads; they keep their order, and few are in memory at once."""

    def look(image: RawImage) -> RawImage:
        if image.data is None or image.finding is not None:
            return image
        return image._replace(finding=examine(image.data, side, check))

    with closing(map_in_order(look, images)) as looked:
        yield from (image for _, image in looked)


VERSION = 1
OPEN_FILES = 64
LOCK = "lock"


@dataclass(slots=True)
class Part:
    """Images of one input.

    Attributes:
        blob: File of the images' bytes, in the order of the lists; or the folder of their files.
        sizes: Bytes of each image; 0 if it could not be read.
        sums: CRC-32 of each.
        findings: By place in the lists, what is not fine.
        suffixes: Of each file in the folder; empty for a blob.
    """

    blob: Path
    ids: list[str] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    sums: list[int] = field(default_factory=list)
    findings: dict[int, Finding] = field(default_factory=dict)
    suffixes: list[str] = field(default_factory=list)

    def fill(self, images: Iterable[RawImage], write: Callable[[bytes], object]) -> None:
        """Take in images, and write their bytes, one after another."""
        for image in images:
            data = image.data or b""
            write(data)
            if image.finding is not None and image.finding.kinds:
                self.findings[len(self.ids)] = image.finding
            self.ids.append(image.image_id)
            self.sizes.append(len(data))
            self.sums.append(zlib.crc32(data))
            if image.suffix is not None:
                self.suffixes.append(sys.intern(image.suffix))


class ImageSpool:
    """The hidden folder; a context manager that keeps other processes out of it.

    It lies beside ``out``, the store that is to be written; ``basis``, JSON-serialisable, is what
    its content depends on besides the inputs.
    """

    def __init__(self, out: Path, basis: Any) -> None:
        self.folder = out.parent / f".{out.name}.spool"
        self._out = out
        self._basis = [VERSION, basis]
        self._open: dict[Path, BinaryIO] = {}

    def __enter__(self) -> Self:
        try:
            self.folder.mkdir(exist_ok=True)
        except OSError as error:
            raise DataError(
                f"{self._out}: cannot make the folder {self.folder.name} beside it "
                f"({error.strerror}); the output's folder must exist and be writable: choose "
                "another one by --out"
            ) from error
        self._lock = FileLock(self.folder / LOCK, timeout=0)
        try:
            self._lock.acquire()
        except Timeout as error:
            raise DataError(
                f"{self._out}: another process is preparing this store; wait for it, or choose "
                "another --out"
            ) from error
        remove_leftovers(self._out)
        return self

    def __exit__(self, *exception: object) -> None:
        for file in self._open.values():
            file.close()
        self._open.clear()
        keep = self.num_bytes() > 0
        if not keep:
            self.remove()
            (self.folder / LOCK).unlink(missing_ok=True)
        self._lock.release()
        if not keep:
            with contextlib.suppress(OSError):  # another process may have come
                self.folder.rmdir()

    def num_bytes(self) -> int:
        """Bytes of images that are kept for a later call."""
        return sum(path.stat().st_size for path in self.folder.glob("*.blob"))

    def remove(self) -> None:
        """Throw away what is kept."""
        for path in self.folder.iterdir():
            if path.name != LOCK:
                path.unlink(missing_ok=True)

    def load(self, name: str, fingerprint: Any) -> Part | None:
        """Find the part that is kept of an input; None if the input has to be read.

        ``fingerprint``, JSON-serialisable, equals what ``write`` was given if the input is
        unchanged.
        """
        blob, index = self._paths(name)
        try:
            kept = parse_json(index.read_bytes())
            if kept["key"] != self._key(name, fingerprint):
                return None
            findings = {int(k): Finding(tuple(v[0]), v[1]) for k, v in kept["findings"].items()}
            part = Part(blob, kept["ids"], kept["sizes"], kept["sums"], findings)
            return part if blob.stat().st_size == sum(part.sizes) else None
        except (OSError, ValueError, KeyError, TypeError):
            return None  # not there, or not ours: read the input

    def write(self, name: str, fingerprint: Any, images: Iterable[RawImage]) -> Part:
        """Keep all images of an input; what ``images`` raises leaves nothing of it."""
        blob, index = self._paths(name)
        part = Part(blob)
        try:
            write_atomically(blob, lambda file: part.fill(images, file.write))
            content = {
                "key": self._key(name, fingerprint),
                "ids": part.ids,
                "sizes": part.sizes,
                "sums": part.sums,
                "findings": {k: [v.kinds, v.detail] for k, v in part.findings.items()},
            }
            write_atomically(index, json.dumps(content, separators=(",", ":")))
        except OSError as error:
            blob.unlink(missing_ok=True)
            raise DataError(
                f"{self._out}: cannot write temporary data into {self.folder} ({error.strerror}); "
                "preparing needs about twice the images' size beside the store: free space, or "
                "choose another disk by --out"
            ) from error
        return part

    def read(self, blob: Path, start: int, size: int) -> bytes:
        """Read an image back; short if the blob was cut."""
        file = self._open.get(blob)
        if file is None:
            if len(self._open) >= OPEN_FILES:
                self._open.pop(next(iter(self._open))).close()
            file = self._open[blob] = blob.open("rb", buffering=0)
        file.seek(start)
        return file.read(size)

    def _key(self, name: str, fingerprint: Any) -> str:
        return json.dumps([self._basis, name, fingerprint])

    def _paths(self, name: str) -> tuple[Path, Path]:
        stem = hashlib.blake2b(name.encode(), digest_size=12).hexdigest()
        return self.folder / f"{stem}.blob", self.folder / f"{stem}.index"
