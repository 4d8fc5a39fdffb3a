"""Selection of participants among simulated devices: plug-ins, one a file."""
