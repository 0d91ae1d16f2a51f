"""Gaussian laws on which to try bounds that assume Gaussian units."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from theory.laws import GaussianLaw

SIGNALS = (0.03, 0.1, 0.3, 0.6, 1.0, 1.5, 2.0, 3.0, 5.0, 8.0)


def gaussian_laws(seed: int, *, random: int = 200) -> Iterator[tuple[str, GaussianLaw]]:
    """Structured Gaussian laws, then random ones, all in the eigenbasis of the covariance.

    One dimension; isotropic; rank-one noise across the mean (a = 0); noise along and across the mean.

    Parameters
    ----------
    seed
        For the random part.
    random
        Number of random laws.

    Examples
    --------
    >>> family, law = next(gaussian_laws(0))
    >>> family, law.dimension
    ('one dimension', 1)
    """
    for r in SIGNALS:
        yield "one dimension", GaussianLaw(np.array([r]), np.array([1.0]))
    for d in (2, 3, 10, 100):
        for r in SIGNALS:
            mu = np.zeros(d)
            mu[0] = r * d**0.25  # d_2 = r^4 whatever d
            yield "isotropic", GaussianLaw(mu, np.ones(d))
    for r in SIGNALS:
        yield "noise across the mean", GaussianLaw(np.array([r, 0.0]), np.array([0.0, 1.0]))
        for along in (0.01, 0.1, 0.5):
            yield "two scales", GaussianLaw(np.array([r, 0.0]), np.array([along, 1.0]))
    rng = np.random.default_rng(seed)
    for _ in range(random):
        d = int(rng.integers(1, 6))
        mu = rng.normal(size=d) * 10 ** rng.uniform(-1, 1)
        yield "random", GaussianLaw(mu, 10 ** rng.uniform(-3, 1, size=d))
