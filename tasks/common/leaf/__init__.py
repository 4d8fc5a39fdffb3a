"""LEAF's data tools, for every task whose data come in LEAF's forms; no task of its own."""
