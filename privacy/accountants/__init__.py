"""Methods that ``privacy.accountant`` composes with: Renyi divergences, PRV, other laws' bounds."""
