"""Records of a round for the ledger, measured outside of the code that clips and noises."""
