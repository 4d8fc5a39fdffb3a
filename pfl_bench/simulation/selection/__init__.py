"""Who takes part in a round of simulated devices: plug-ins, one a file."""
