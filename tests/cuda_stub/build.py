"""Builds the CUDA runtime without a GPU from ``runtime.c`` and the headers beside torch."""

from __future__ import annotations

import re
import shutil
import site
import subprocess
import sys
from pathlib import Path

import torch

SOURCE = Path(__file__).with_name("runtime.c")
# The driver too, which PyTorch looks for by this name.
LIBRARY = "libcuda.so.1"
# The wheels leave out the compiler's part of the headers.
_HOST_DEFINES = """
#define __host__
#define __device__
#define CUDARTAPI
#define CUDARTAPI_CDECL
#define __device_builtin__
#define __device_builtin_texture_type__
#define __device_builtin_surface_type__
#define __cudart_builtin__
#define __align__(n) __attribute__((aligned(n)))
#define __builtin_align__(n) __align__(n)
#define __location__(kind)
"""
_DECLARED = re.compile(r"(?:CUDARTAPI|CUBLASWINAPI|CUDAAPI)\s+(cu\w+)\s*\(")
# Their messages are the real library's.
_REAL = {"cudaGetErrorString", "cudaGetErrorName"}
_NO_WORK = re.compile("Create|Destroy|Set|Get|Init|Check|Copy|Configure|Free|Alloc")


def header_folder() -> Path | None:
    """Folder of the headers of the CUDA that torch was built with; None where they are missing."""
    major = (torch.version.cuda or "").partition(".")[0]
    folders = [*site.getsitepackages(), *sys.path]
    found = (Path(folder, "nvidia", f"cu{major}", "include") for folder in folders)
    return next((path for path in found if (path / "cuda_runtime_api.h").exists()), None)


def missing() -> str | None:
    """Why it cannot be built here; None where it can."""
    if torch.version.cuda is None:
        return "this build of torch has no CUDA"
    if not sys.platform.startswith("linux") or shutil.which("gcc") is None:
        return "needs gcc, on Linux"
    return None if header_folder() else "the headers of CUDA's wheel are not installed"


def build(folder: Path) -> Path:
    """Build the library in an empty folder.

    Returns:
        What LD_PRELOAD takes.
    """
    include = header_folder()
    assert include is not None  # ``missing`` says so
    (folder / "crt").mkdir()
    (folder / "crt" / "host_defines.h").write_text(_HOST_DEFINES)
    rest = folder / "rest.c"
    rest.write_text("extern long stub_counts[];\n" + "".join(_functions(include)))
    command = ["gcc", "-O1", "-w", "-fPIC", "-shared"]
    command += [
        f"-I{folder}",
        f"-I{include}",
        f"-Wl,-soname,{LIBRARY}",
        str(SOURCE),
        str(rest),
        "-o",
        str(folder / LIBRARY),
    ]
    subprocess.run(command, check=True)
    return folder / LIBRARY


def _functions(include: Path) -> list[str]:
    """What is left of runtime, driver and cuBLAS, whose products count as launches."""
    headers = ("cuda.h", "cuda_runtime_api.h", "cublas_api.h", "cublasLt.h")
    texts = [(include / name).read_text() for name in headers]
    names = sorted({name for text in texts for name in _DECLARED.findall(text)} - _REAL)
    weak = "__attribute__((weak)) int {}(void) {{ {}return 0; }}\n"
    count = "__atomic_fetch_add(&stub_counts[0], 1, __ATOMIC_RELAXED); "
    return [
        weak.format(n, count if n.startswith("cublas") and not _NO_WORK.search(n) else "")
        for n in names
    ]
