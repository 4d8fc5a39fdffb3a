r"""How clients make their updates smaller before they send them: plug-ins, one a file.

On one core, beside 325 ms for a client's epoch of 226 examples with LEAF's CNN on FEMNIST, its
6,603,710 parameters took ``top_k`` of a hundredth 43 ms (56 with error feedback), ``quantization``
68 ms and a ``count_sketch`` of 5 x 130,000 130 ms, each the best of ten. The first of them:

    python -m timeit -n 1 -r 10 -s "import torch; torch.set_num_threads(1)" \
      -s "from pfl_bench.federated.compression.top_k import keep_largest" \
      -s "v = torch.randn(6603710); out = torch.empty_like(v)" "keep_largest(v, 66038, out)"
"""
