"""The claims ledger: each claim with the rungs that bear on it, in the order of the papers, then ours."""

from __future__ import annotations

from theory import checks, checks_expansion, checks_ours
from theory.bounds import B_align, B_exact
from theory.claims import Claim

P1, P2, OURS = "paper 1", "paper 2", "this package"

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
    Claim(
        "expansion-T2",
        "with probability >= 1 - B_align alignment is positive; with optimisation gain and generalisation "
        "control the expanded model strictly improves test risk",
        P1 + ", theorem 2",
        (
            ("derived", lambda: checks_expansion.summed("theorem-2")),
            ("proved", lambda: checks_expansion.core("aligned-margin", "theorem-2", "false-theorem-2")),
            ("exact", checks_expansion.theorem_2_exact),
            ("simulated", checks_expansion.theorem_2_simulated),
        ),
        "trained blocks under the fallback rule on fresh data",
    ),
    Claim(
        "jumpboard-pop",
        "h_0 = 0 keeps the old model; a negative population slope along v gives a strictly better one nearby",
        P2 + ", population jumpboard",
        (
            ("derived", checks_expansion.slope_derived),
            (
                "proved",
                lambda: checks_expansion.core(
                    "jumpboard-gain",
                    "jumpboard-strict",
                    "zero-block",
                    "false-jumpboard-gain",
                    "false-jumpboard-strict",
                ),
            ),
            ("simulated", lambda: checks_expansion.jumpboard_simulated(1000, "a population")),
        ),
        "steps along -mu on held-out units",
    ),
    Claim(
        "jumpboard-train",
        "the same for the training risk along -mu_M",
        P2 + ", training jumpboard",
        (
            ("derived", checks_expansion.slope_derived),
            (
                "proved",
                lambda: checks_expansion.core("jumpboard-gain", "jumpboard-strict", "false-jumpboard-strict"),
            ),
            ("simulated", lambda: checks_expansion.jumpboard_simulated(20, "a training set")),
        ),
        "steps along -mu_M on the training units",
    ),
    Claim(
        "route-A",
        "L_test(new) <= L_test(old) - Delta_R/2 - Delta_ERM + 2 eps_M with probability >= 1 - delta_M - "
        "exp(-K Delta_R^2/(8 B^2))",
        P2 + ", theorems 1 and 2",
        (
            ("derived", lambda: checks_expansion.summed("route-A")),
            (
                "proved",
                lambda: checks_expansion.core(
                    "route-A-population",
                    "route-A",
                    "route-A-strict",
                    "false-route-A-once",
                    "false-route-A-margin",
                    "false-route-A-selection",
                ),
            ),
            ("exact", checks_expansion.route_A_exact),
            ("simulated", checks_expansion.route_A_simulated),
        ),
    ),
    Claim(
        "route-B",
        "L_test(new) <= L_test(old) - Delta_test - Delta_ERM + 2 (eps_M + eps_K) with probability >= "
        "1 - delta_M - delta_K",
        P2 + ", theorem 3",
        (
            ("derived", lambda: checks_expansion.summed("route-B")),
            (
                "proved",
                lambda: checks_expansion.core(
                    "route-B", "route-B-strict", "false-route-B-once", "false-route-B-train-only"
                ),
            ),
            ("exact", checks_expansion.route_B_exact),
            ("simulated", checks_expansion.route_B_simulated),
        ),
    ),
    Claim(
        "deepest",
        "when the first-order signal vanishes, more depth gives no strict first-order gain",
        P2 + ", deepest-model regime",
        (
            ("derived", checks_expansion.slope_derived),
            ("proved", lambda: checks_expansion.core("deepest", "false-deepest")),
            ("simulated", checks_expansion.deepest_simulated),
        ),
        "signal norm against depth",
    ),
    Claim(
        "power-law",
        "under an assumed power-law decay of the signal the remaining gain is a power law in depth",
        P2 + ", appendix M",
        (
            ("derived", checks_expansion.power_law_derived),
            ("simulated", checks_expansion.power_law_simulated),
        ),
    ),
    Claim("width-up", "d_align grows with width", P1, (), "trend of log d_align on log width over seeds"),
    Claim(
        "misalign-down",
        "misalignment falls with width at fixed M, K, and with M and K at fixed width",
        P1,
        (("simulated", checks_expansion.misalign_down_simulated),),
        "frequencies against width, M and K",
    ),
    Claim(
        "follow",
        "B_exact and B_align bound the empirical frequency; B_align is the looser one-number summary",
        P1,
        (("simulated", checks_expansion.follow_simulated),),
        "bounds beside frequencies in every cell",
    ),
    Claim(
        "intervention",
        "a step -alpha mu_M of a zero-initialised residual parameter changes held-out loss by about -alpha T",
        P1,
        (),
        "observed over predicted change",
    ),
    Claim("near-diagonal", "the gradient covariance is nearly diagonal", P2, (), "off-diagonal energy share"),
    Claim("signal-decay", "the signal's size falls with depth", P2, (), "signal norm against depth"),
    Claim("joint-scaling", "depth without width gives non-monotone test loss", P2, (), "depth x width grid"),
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
