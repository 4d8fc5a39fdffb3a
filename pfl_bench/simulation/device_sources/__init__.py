"""Sources of simulated devices: plug-ins, one a file."""
