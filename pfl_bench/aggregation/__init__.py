"""How the centre makes one update of many where no mechanism does: plug-ins, one a file."""
