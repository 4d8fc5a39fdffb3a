"""Source of CelebA's images: a folder, or the published zip, which is not unpacked."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import Self

from pfl_bench.data import regular
from pfl_bench.types import DataError
from tasks.common.damage import reading
from tasks.common.vision.pictures import PictureError, opened, read_to_end

FOLDER, ARCHIVE = "img_align_celeba", "img_align_celeba.zip"
# Where the files lie in the publisher's folders and in LEAF's.
PLACES = ("", "Img", "Anno", "Eval", "celeba", "raw", "data/raw")


def find(source: Path, name: str) -> Path | None:
    """Find a file or folder of CelebA in the places where it may lie."""
    for place in PLACES:
        path = source / place / name
        if path.exists():
            return path
    return None


class ImageSource:
    """Reads images by name, from the folder or zip in ``source``; a context manager."""

    def __init__(self, source: Path) -> None:
        folder, archive = find(source, FOLDER), find(source, ARCHIVE)
        self._zip: zipfile.ZipFile | None = None
        self._members: dict[str, str] = {}
        if folder is not None and folder.is_dir():
            # Some mirrors have a folder of the same name inside.
            inner = folder / FOLDER
            self.path = inner if inner.is_dir() else folder
        elif archive is not None:
            self.path = archive
            with reading(archive):
                self._zip = zipfile.ZipFile(regular(archive))
            self._members = {
                name.rpartition("/")[2]: name
                for name in self._zip.namelist()
                if not name.startswith("__MACOSX")
            }
        else:
            raise DataError(f"{source} has neither a folder {FOLDER}/ nor {ARCHIVE}; put one there")

    def read(self, name: str) -> bytes | None:
        """Read an image's bytes; None if there is no such image.

        Raises:
            OSError: It is there but cannot be read.
        """
        if self._zip is None:
            path = self.path / name
            return path.read_bytes() if path.is_file() else None
        if name not in self._members:
            return None
        try:
            return self._zip.read(self._members[name])
        except (zipfile.BadZipFile, zlib.error, RuntimeError, NotImplementedError) as error:
            raise OSError(str(error)) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._zip is not None:
            self._zip.close()


def why_unreadable(data: bytes) -> str | None:
    """Say what is wrong with an image; None if it can be decoded to its end."""
    try:
        with opened(data) as image:
            read_to_end(image)
    except PictureError as error:
        return str(error)
    return None
