"""pfl-bench: a benchmark toolkit for differentially private federated learning."""

from pfl_bench._shadowing import check_packages

__version__ = "0.1.0"

check_packages()
