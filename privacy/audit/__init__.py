"""Audits of a run's privacy: what its ledger proves, and what an attacker can measure.

Guarantee: none of its own. An audit that passes found no contradiction between what was claimed
and what was recorded; it does not prove the claim.
"""
