"""Mechanisms, one file each; ``privacy.mechanism`` says what they have in common.

Each module exposes ``Options`` and ``build(options, noise)``, and is imported by its name when it
is used.
"""
