"""Learning problems on federated data, one folder each: ``task.py``, ``models.py``, README.md.

A task with files has a ``prepare.py`` too. Nothing is imported here: a task is loaded by name.
``leaf``, ``fedscale`` and ``pictures.py`` are no tasks: they are what several tasks share.
"""
