"""The claims ledger: each claim with the rungs that bear on it, in the order of the papers, then ours."""

from __future__ import annotations

from theory import checks, checks_ours
from theory.bounds import B_align, B_exact
from theory.claims import Claim

P1, OURS = "paper 1", "this package"

LEDGER: tuple[Claim, ...] = (
    Claim(
        "mean",
        "E T = m2",
        P1,
        (
            ("derived", checks.mean_derived),
            ("exact", checks.mean_exact),
            ("simulated", checks.mean_simulated),
        ),
    ),
    Claim(
        "variance",
        "Var T = (1/M + 1/K) a + t/(MK)",
        P1,
        (
            ("derived", checks.variance_derived),
            ("exact", checks.variance_exact),
            ("simulated", checks.variance_simulated),
        ),
    ),
    Claim(
        "cantelli",
        "P(T <= 0) <= B_exact = V/(V + m2^2)",
        P1,
        (
            ("derived", checks.variance_derived),
            ("proved", lambda: checks.proved("cantelli-pointwise", "cantelli-optimum", "false-cantelli")),
            ("exact", lambda: checks.below_exactly(B_exact, "B_exact")),
            ("gaussian", checks.cantelli_gaussian),
            ("simulated", lambda: checks.bound_simulated(B_exact, "B_exact")),
        ),
        "frequencies against B_exact, pool and fresh protocols",
    ),
    Claim(
        "dims",
        "d_par = m2^2/a, d_2 = m2^2/t carry Var T / m2^2 and are invariant under q -> c U q",
        P1,
        (("derived", checks.dims_derived), ("exact", checks.dims_exact)),
    ),
    Claim(
        "align",
        "B_exact <= B_align = 1/(1 + n_eff d_align), n_eff = MK/(M+K+1)",
        P1 + ", theorem 1",
        (
            ("derived", checks.dims_derived),
            (
                "proved",
                lambda: checks.proved(
                    "exact-below-align", "align-below-one", "false-n_eff", "false-max", "false-below-one"
                ),
            ),
            ("exact", checks.n_eff_exact),
            ("simulated", lambda: checks.bound_simulated(B_align, "B_align")),
        ),
        "frequencies against B_align",
    ),
    Claim(
        "monotone",
        "B_exact and B_align fall in M, in K, in d_par, in d_2",
        P1,
        (
            (
                "proved",
                lambda: checks.proved(
                    "exact-falls-in-M",
                    "exact-falls-in-K",
                    "align-falls-in-M",
                    "align-falls-in-K",
                    "exact-falls-in-d_par",
                    "exact-falls-in-d_2",
                    "align-falls-in-d_align",
                    "false-falls-in-M",
                    "false-n_eff-growth",
                    "false-d_par",
                    "false-d_2",
                ),
            ),
            ("exact", checks.monotone_exact),
        ),
    ),
    Claim(
        "minimal",
        "needs only independence, finite second moments and mu != 0",
        P1,
        (("exact", checks.minimal_exact), ("simulated", checks.minimal_simulated)),
    ),
    Claim(
        "linear-width",
        "lambda_max(Sigma) <= s2 and m2 >= c N give d_par >= c N/s2 and d_2 >= c^2 N/s2^2 (sufficient only)",
        P1,
        (
            ("derived", checks.linear_width_derived),
            (
                "proved",
                lambda: checks.proved(
                    "linear-width-par",
                    "linear-width-2",
                    "spectrum-term",
                    "false-linear-par",
                    "false-linear-2",
                ),
            ),
            ("simulated", checks.linear_width_simulated),
        ),
    ),
    Claim("width-up", "d_align grows with width", P1, (), "trend of log d_align on log width over seeds"),
    Claim(
        "regroup",
        "averaging b units: d_par x b, d_2 x b^2; B_align at b* = d_par/d_2 equals B_exact",
        OURS,
        (
            (
                "proved",
                lambda: checks.proved(
                    "regroup-identity", "regroup-below", "false-regroup", "false-regroup-2"
                ),
            ),
            ("exact", checks_ours.regroup_exact),
        ),
    ),
    Claim(
        "tight-11",
        "at M = K = 1 Cantelli is attained by q in {0, c}",
        OURS,
        (("exact", checks_ours.tight_exact),),
    ),
    Claim(
        "tight-align",
        "P = B_exact = B_align = 3/4 for the fair coin",
        OURS,
        (("exact", checks_ours.tight_align_exact),),
    ),
    Claim(
        "two-laws",
        "mean and variance of T when train and test units have different laws; Cantelli needs E T > 0",
        OURS,
        (
            ("derived", checks_ours.two_laws_derived),
            ("exact", checks_ours.two_laws_exact),
            ("simulated", checks_ours.two_laws_simulated),
        ),
    ),
    Claim(
        "finite-pool",
        "mean and variance of T for disjoint draws without replacement",
        OURS,
        (
            ("derived", checks_ours.finite_pool_derived),
            ("exact", checks_ours.finite_pool_exact),
            ("simulated", checks_ours.finite_pool_simulated),
        ),
    ),
    Claim(
        "pool-world",
        "with replacement, B_exact with the pool's own moments is exactly valid",
        OURS,
        (("exact", checks_ours.pool_world_exact), ("simulated", checks_ours.pool_world_simulated)),
    ),
    Claim(
        "batch-scale",
        "q -> c q changes nothing, in floats too",
        OURS,
        (("exact", checks_ours.batch_scale_exact),),
    ),
    Claim(
        "tight-MM",
        "no constant c < 1 makes c B_exact valid for any M = K",
        OURS,
        (("exact", checks_ours.tight_mm_exact),),
    ),
    Claim(
        "pool-fails", "without replacement the theorem is false", OURS, (("exact", checks.pool_fails_exact),)
    ),
    Claim(
        "P-not-monotone", "P(T <= 0) need not fall with M", OURS, (("exact", checks_ours.not_monotone_exact),)
    ),
    Claim(
        "cone",
        "a^2 <= m2^2 t, with equality for d = 1",
        OURS,
        (("proved", lambda: checks.proved("cone", "false-cone")), ("exact", checks_ours.cone_exact)),
    ),
)
"""All claims, in the order of the papers, then ours."""
