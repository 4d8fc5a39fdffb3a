"""What ``privacy.accountant`` composes with: Renyi divergences, PRV, and bounds of other laws."""
