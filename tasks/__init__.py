"""Learning problems on federated data, one folder each: ``task.py``, ``models.py``, README.md.

Nothing is imported here: a task is loaded by name. ``common`` is no task: it has what tasks share.

A task with files has a ``prepare.py`` too: ``prepare(source, out, options, progress)`` reads a
folder of public files and writes a store, whole or not at all. Some have a ``generate.py``:
``generate(out, options, progress)`` makes up such files, whole or not at all.

- ``out`` of ``prepare`` is the store to write; an existing one is replaced when all has gone well.
- ``out`` of ``generate`` is the folder to make; it may exist if it is empty. A file or a folder
  that is not empty is refused by a DataError. The same options give the same files, byte for byte,
  under the same versions of the libraries.
- ``progress`` is called with what is being done, how much is done, and of how much if known.
- Both return facts for printing. Those of ``generate`` say what was made, how many users and
  examples; "prepare_options" are the ``key=value`` texts that preparing the folder needs.
"""
