"""Fetch a task's files from the Hugging Face Hub: resumed, and checked by digest and count.

``huggingface_hub`` lists the repository: its newest commit, and of each file the address, the bytes
and the SHA-256. The files are then fetched as those of any publisher (``pfl_bench.data.download``),
because ``huggingface_hub`` (2.4) begins an interrupted file anew in the next call.
"""

from __future__ import annotations

import os
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath

from pfl_bench.data.download import download
from pfl_bench.types import DataError, HubDataset, Progress, RemoteFile

_TIMEOUT_S = 30.0


def download_from_hub(
    dataset: HubDataset, target: Path, progress: Progress, advice: str = ""
) -> list[Path]:
    """Fetch the files that are not there yet; those that are there are verified.

    All files are of one commit, the newest. Their folders in the repository are left out, or stand
    before their names with a dash. The variable HF_ENDPOINT names another Hub than
    https://huggingface.co.
    """
    files = _list_files(dataset, advice)
    paths = download(files, target, progress, advice)
    if dataset.num_rows is not None:
        _check_rows(dataset, paths, dataset.num_rows)
    return paths


def _list_files(dataset: HubDataset, advice: str) -> list[RemoteFile]:
    """Files that the repository holds of the data set, at its newest commit."""
    # Else the maker is told of each call.
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    try:
        from huggingface_hub import HfApi, hf_hub_url
    except ImportError:
        raise DataError(
            "--from hub needs the package huggingface_hub; install it by "
            "`pip install 'pfl-bench[hub]'`"
        ) from None
    # Now, not when it was imported.
    api = HfApi(endpoint=os.environ.get("HF_ENDPOINT"), library_name="pfl-bench")
    name, endpoint = dataset.repository, api.endpoint

    try:
        info = api.dataset_info(name, files_metadata=True, timeout=_TIMEOUT_S)
    except MemoryError:
        raise
    except Exception as error:  # whatever goes wrong there or on the way
        text = " ".join(str(error).split()) or type(error).__name__
        raise DataError(
            f"{name}: could not be listed at {endpoint} ({text[:300]}). {advice}"
        ) from error
    if info.gated:
        raise DataError(
            f"{name}: its owner wants to know who fetches it, so that it cannot be fetched here; "
            f"fetch it by `hf auth login` and `hf download {name} --repo-type dataset --local-dir "
            f"DIR`. {advice}"
        )
    found = [file for file in info.siblings or () if fnmatch(file.rfilename, dataset.pattern)]
    if not found:
        held = ", ".join(file.rfilename for file in (info.siblings or ())[:8]) or "nothing"
        raise DataError(
            f"{name}: has no file {dataset.pattern} at {endpoint}, but {held}; was the repository "
            f"rearranged? {advice}"
        )
    without = [file.rfilename for file in found if file.lfs is None]
    if without and dataset.num_rows is not None:
        raise DataError(
            f"{name}: {endpoint} lists no SHA-256 of {without[0]}, which it could be held against. "
            f"{advice}"
        )
    place = {"repo_type": "dataset", "revision": info.sha, "endpoint": endpoint}
    return [
        RemoteFile(
            _name(dataset, PurePosixPath(file.rfilename)),
            (hf_hub_url(name, file.rfilename, **place),),
            file.size,
            None if file.lfs is None else f"sha256:{file.lfs.sha256}",
        )
        for file in found
    ]


def _name(dataset: HubDataset, path: PurePosixPath) -> str:
    return path.name if dataset.num_rows is not None else "-".join(path.parts)


def _check_rows(dataset: HubDataset, paths: list[Path], published: int) -> None:
    import pyarrow
    from pyarrow.parquet import read_metadata

    rows = 0
    for path in paths:
        try:
            rows += int(read_metadata(path).num_rows)
        except pyarrow.ArrowException as error:
            raise DataError(
                f"{path}: is what the Hub has, but no parquet file: {error}; look at the "
                f"repository {dataset.repository}"
            ) from None
    if rows != published:
        raise DataError(
            f"{dataset.repository}: its {len(paths)} files hold {rows:,} rows, but "
            f"{published:,} were published; the files stay where they are, but are not that "
            "data set: look at the repository's history"
        )
