"""The initial laws of the tokens, all in one place: to import this module fills `LAWS`."""

from __future__ import annotations

from .bumps import PoissonKernel as PoissonKernel
from .bumps import Uniform as Uniform
from .bumps import VonMisesFisherMixture as VonMisesFisherMixture
from .clouds import Equiangular as Equiangular
from .clouds import ParticleCloud as ParticleCloud
from .clouds import TokenFile as TokenFile
from .clouds import Tokens as Tokens
from .clouds import principal_projection as principal_projection
from .harmonics import FourierSeries as FourierSeries
from .harmonics import Harmonics as Harmonics
from .harmonics import ZonalHarmonics as ZonalHarmonics
from .laws import LAWS as LAWS
from .laws import POLES as POLES
from .laws import Law as Law
