r"""Compression of updates by clients, before they send them: plug-ins, one a file.

On one core, beside 325 ms for a client's epoch of 226 examples with LEAF's CNN on FEMNIST, its
6,603,710 parameters took ``top_k`` of a hundredth 43 ms (56 with error feedback), ``quantization``
68 ms and a ``count_sketch`` of 5 x 130,000 130 ms, each the best of ten. The first of them:

    python -m timeit -n 1 -r 10 -s "import torch; torch.set_num_threads(1)" \
      -s "from pfl_bench.federated.compression.top_k import keep_largest" \
      -s "v = torch.randn(6603710); out = torch.empty_like(v)" "keep_largest(v, 66038, out)"
"""

from __future__ import annotations

from torch import Tensor

from pfl_bench.client.costs import BYTES_PER_PARAMETER
from pfl_bench.types import (
    ClientUpload,
    LocalResult,
    PluginError,
    UpdateTransform,
    place_of,
    returned,
)


class Compression(UpdateTransform):
    """Base of compressions: counts bytes, and sends as it is what would not become smaller.

    Args:
        num_parameters: P.
        num_bytes: What a compressed update takes.
    """

    expected_bytes: float

    def __init__(self, num_parameters: int, num_bytes: int) -> None:
        if not num_bytes > 0:
            raise PluginError(
                f"{place_of(self, '__init__')}: num_bytes is {num_bytes!r}, but must be what a "
                "compressed update takes, above 0"
            )
        self._dense = float(num_parameters * BYTES_PER_PARAMETER)
        self.expected_bytes = min(float(num_bytes), self._dense)

    def send(self, upload: ClientUpload, result: LocalResult, round_index: int) -> ClientUpload:
        """See ``UpdateTransform``."""
        if self.expected_bytes < self._dense:
            sent = self.compress(upload.update, result.user, round_index)
            upload.update = returned(self, "compress", sent, Tensor, upload.update.shape)
            upload.num_bytes += self.expected_bytes - self._dense
        return upload

    def compress(self, update: Tensor, user: int, round_index: int) -> Tensor:
        """The update as the centre reads it.

        Args:
            update: Shape (P,), float32; not changed.
            user: Whose it is.
            round_index: From 1.

        Returns:
            Shape (P,), float32, valid until the next client's.
        """
        raise NotImplementedError
