"""Examples that are assigned to clients by an experimenter's rule."""
