"""Statistics of a store: sizes of users, labels and how unequally users have them.

``store`` computes, ``text`` lays out, and ``figures`` draws them. What only one task has, such as
the names of its labels, is that task's own: ``tasks/<name>/statistics.py``.
"""

from pfl_bench.report.statistics.store import store_statistics
from pfl_bench.report.statistics.text import format_statistics

__all__ = ["format_statistics", "store_statistics"]
