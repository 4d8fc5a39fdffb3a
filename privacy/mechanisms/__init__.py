"""Mechanisms, one file each; ``privacy.mechanism`` says what they have in common.

Each module exposes ``Options``, ``build(options, noise)`` and ``DESCRIPTION``, what it is
(``privacy.description``), and is imported by its name when it is used. Nothing else names it.
``privacy.noise.clipped_sum``, ``privacy.noise.correlated_noise`` and
``privacy.noise.client_reports`` have what most of them share.
"""
