"""The linear part ``A`` of an equation ``D^β z = A z + f(t, z)``: what ``linear=`` accepts besides matrices."""

from .bands import Bands
from .base import LinearPart, Systems
from .dense import Matrix
from .given import read_linear
from .grids import diffusion, laplacian
from .sparse import Sparse
from .spectral import Spectral

__all__ = ["Bands", "LinearPart", "Matrix", "Sparse", "Spectral", "Systems", "diffusion", "laplacian", "read_linear"]
