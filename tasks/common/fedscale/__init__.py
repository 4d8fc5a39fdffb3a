"""FedScale's data layout (Lai et al. 2022), which several tasks read; no task of its own."""
