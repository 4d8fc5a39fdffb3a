"""What a round leaves behind in the ledger, measured outside of the code that clips and noises."""
