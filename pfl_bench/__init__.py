"""pfl-bench: a benchmark toolkit for differentially private federated learning."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pfl_bench._shadowing import check_packages

if TYPE_CHECKING:
    from pfl_bench.api import (
        FederatedTrainer,
        audit,
        calibrate,
        epsilon,
        load_row,
        run_row,
        run_table,
    )
    from pfl_bench.cli.functions import (
        check_plugin,
        leaderboard,
        list_rows,
        show,
        sweep,
        write_report,
    )
    from pfl_bench.cli.run_result import RunResult, TableResult, load_run
    from pfl_bench.federated.in_memory_task import in_memory_task

__version__ = "0.1.0"
__all__ = [
    "FederatedTrainer",
    "RunResult",
    "TableResult",
    "audit",
    "calibrate",
    "check_plugin",
    "epsilon",
    "in_memory_task",
    "leaderboard",
    "list_rows",
    "load_row",
    "load_run",
    "run_row",
    "run_table",
    "show",
    "sweep",
    "write_report",
]
_HOMES = {
    "pfl_bench.api": "FederatedTrainer audit calibrate epsilon load_row run_row run_table",
    "pfl_bench.cli.functions": "check_plugin leaderboard list_rows show sweep write_report",
    "pfl_bench.cli.run_result": "RunResult TableResult load_run",
    "pfl_bench.federated.in_memory_task": "in_memory_task",
}

check_packages()


def __getattr__(name: str) -> Any:
    """Load the API when it is first asked for: the command line begins without it."""
    for module, names in _HOMES.items():
        if name in names.split():
            return getattr(import_module(module), name)
    raise AttributeError(f"module 'pfl_bench' has no attribute {name!r}")


def __dir__() -> list[str]:
    """The API's names too, before they are loaded: what an interpreter offers."""
    return sorted({*globals(), *__all__})
