"""LEAF's synthetic data: generated tasks whose true models differ and cluster."""
