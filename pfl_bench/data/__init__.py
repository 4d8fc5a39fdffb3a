"""The federated store: one HDF5 layout for all tasks, read a client at a time.

``StoreWriter`` writes a file: arrays arrive in any order (``checks``), wait in temporary files
(``spool``) and are put together sorted by user (``assembly``). ``Store`` reads it: the file is
checked when it is opened (``opening``), then clients are slices of its arrays (``columns``).
Both take names and versions from ``layout``. Tasks build on ``stored_task``,
or on ``in_memory`` where there is no file. ``load_builtin_pickle`` reads pickles that some sources
hold, without running what is in them.
"""

from pfl_bench.data.in_memory import InMemorySplit
from pfl_bench.data.layout import FORMAT, LAYOUT_VERSION, FieldSpec
from pfl_bench.data.reader import Store, StoreSplit
from pfl_bench.data.safe_pickle import load_builtin_pickle
from pfl_bench.data.stored_task import StoredSplit, StoredTask, gather, open_store
from pfl_bench.data.temporary import new_folder
from pfl_bench.data.writer import StoreWriter
from pfl_bench.files import parse_json, regular, write_atomically

__all__ = [
    "FORMAT",
    "LAYOUT_VERSION",
    "FieldSpec",
    "InMemorySplit",
    "Store",
    "StoreSplit",
    "StoreWriter",
    "StoredSplit",
    "StoredTask",
    "gather",
    "load_builtin_pickle",
    "new_folder",
    "open_store",
    "parse_json",
    "regular",
    "write_atomically",
]
