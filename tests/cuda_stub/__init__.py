"""A CUDA runtime without a GPU, under PyTorch's own CUDA code: see ``build`` and ``device``."""
