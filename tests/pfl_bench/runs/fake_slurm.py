"""Slurm's commands as small programs that run what is submitted on this machine.

They keep each job as a file in the folder of ``$FAKE_SLURM``: its words are the job's process.
"""

from __future__ import annotations

import stat
import sys
from pathlib import Path

_HEAD = """#!{python} -S
import os, pathlib, signal, subprocess, sys
home = pathlib.Path({home!r})
"""
# Runs a job, and again as long as it was asked to be queued again.
_RUNNER = """
name, script = sys.argv[1:]
parent, _, index = name.partition("_")
environment = {**os.environ, "SLURM_JOB_ID": parent}
if index:
    environment |= {"SLURM_ARRAY_JOB_ID": parent, "SLURM_ARRAY_TASK_ID": index}
file = home / "queue" / name
while True:
    subprocess.run(["bash", script], env=environment)
    if not (home / "requeued" / name).exists():
        break
    (home / "requeued" / name).unlink()
file.unlink()
"""
_SBATCH = """
script = pathlib.Path(sys.argv[1])
text = script.read_text()
with (home / "submissions").open("a") as calls:
    calls.write(text + "\\n=====\\n")
if "--partition=nowhere" in text:
    sys.exit("sbatch: error: invalid partition specified: nowhere")
number = 100 + len((home / "submissions").read_text().split("====="))
array = [line for line in text.splitlines() if line.startswith("#SBATCH --array=")]
last = int(array[0].partition("-")[2].partition("=0-")[2].partition("%")[0]) if array else None
names = [str(number)] if last is None else [f"{number}_{i}" for i in range(last + 1)]
# Slurm reads the script at once; submitit moves it afterwards.
copy = home / f"{number}.sh"
copy.write_text(text)
for name in names:
    (home / "queue" / name).touch()
    subprocess.Popen(
        [str(home / "bin" / "runner"), name, str(copy)], start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )
print(f"Submitted batch job {number}")
"""
_SRUN = """
command = sys.argv[1:]
paths = {}
while command[0].startswith("--"):
    option = command.pop(0)
    if option in ("--output", "--error"):
        paths[option] = command.pop(0)
array = os.environ.get("SLURM_ARRAY_JOB_ID")
name = os.environ["SLURM_JOB_ID"]
if array:
    name = f"{array}_{os.environ['SLURM_ARRAY_TASK_ID']}"
streams = []
for option in ("--output", "--error"):
    path = paths[option].replace("%A_%a", name).replace("%j", name).replace("%t", "0")
    streams.append(open(path, "a"))
process = subprocess.Popen(command, stdout=streams[0], stderr=streams[1])
(home / "queue" / name).write_text(str(process.pid))
sys.exit(process.wait())
"""
_SQUEUE = """
assert "--me" in sys.argv and "--array" in sys.argv, sys.argv
for file in sorted((home / "queue").iterdir()):
    print(f"{file.name}|{'RUNNING' if file.read_text() else 'PENDING'}")
"""
_SCONTROL = """
assert sys.argv[1] == "requeue", sys.argv
(home / "requeued" / sys.argv[2]).touch()
"""
_SACCT = """
print("JobID|State|NodeList")
for i, word in enumerate(sys.argv):
    if word == "-j":
        print(f"{sys.argv[i + 1]}|OUT_OF_MEMORY|node1")
"""


def install(home: Path) -> Path:
    """Write the commands; return their folder, for PATH."""
    for name in ("bin", "queue", "requeued"):
        (home / name).mkdir(parents=True)
    head = _HEAD.format(python=sys.executable, home=str(home))
    for name, body in (
        ("runner", _RUNNER),
        ("sbatch", _SBATCH),
        ("srun", _SRUN),
        ("squeue", _SQUEUE),
        ("scontrol", _SCONTROL),
        ("sacct", _SACCT),
    ):
        path = home / "bin" / name
        path.write_text(head + body, encoding="utf-8")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return home / "bin"


def submissions(home: Path) -> list[str]:
    """The scripts that were given to sbatch."""
    try:
        return (home / "submissions").read_text(encoding="utf-8").split("\n=====\n")[:-1]
    except FileNotFoundError:
        return []
