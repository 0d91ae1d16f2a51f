"""Bound objects in detail: sizes, options, SymPy formulas, builtins in formulas, records of moments."""

from __future__ import annotations

import functools
import math
import re
from dataclasses import fields
from fractions import Fraction as F
from types import SimpleNamespace

import numpy as np
import pytest

from theory.bounds import (
    Assumption,
    B_align,
    B_chebyshev,
    B_conditional_bernstein,
    B_conditional_cantelli,
    B_conditional_hoeffding,
    B_exact,
    B_fourth,
    B_regrouped,
    B_subgaussian,
    B_two_laws,
    Bound,
    ConditionalMoments,
    GaussianInput,
    Moments,
    P_gaussian,
    Sizes,
    StatisticMoments,
    SubGaussianMoments,
    TwoLawMoments,
    bound,
    minimum,
    n_eff,
)
from theory.conditional import if_positive
from theory.formula import assumptions
from theory.laws import FiniteLaw, coin

m = Moments(F(2), F(1, 3), F(5))


class TestSizes:
    @pytest.mark.parametrize(
        ("given", "expected"),
        [
            (None, (1, None)),
            (1, (1, 1)),
            (7, (7, 7)),
            (">=2", (2, None)),
            (" >= 12 ", (12, None)),
            ("≥ 3", (3, None)),
            ("<=8", (1, 8)),
            ("≤ 25", (1, 25)),
            ((1, 4), (1, 4)),
            ((5, 5), (5, 5)),
            ((2, None), (2, None)),
            (range(1, 5), (1, 4)),
            (range(3, 10), (3, 9)),
            (Sizes(4, 6), (4, 6)),
        ],
    )
    def test_read(self, given, expected) -> None:
        assert Sizes.read(given) == Sizes(*expected)

    @pytest.mark.parametrize(
        "bad",
        ["12", "<2", ">2", "==2", ">=", range(1, 9, 2), range(5, 5), (0, 3), (1, 2, 3), [1, 2], -1, False],
    )
    def test_unreadable(self, bad) -> None:
        with pytest.raises(ValueError, match=r"^M=.*expected a number >= 1"):
            Sizes.read(bad)
        with pytest.raises(ValueError, match=r"^K=.*expected a number >= 1"):
            Sizes.read(bad, "K")

    def test_contains_and_text(self) -> None:
        assert [n in Sizes(2, 4) for n in (1, 2, 4, 5)] == [False, True, True, False]
        assert [n in Sizes(2) for n in (1, 2, 99)] == [False, True, True]
        assert Sizes(2).text("M") == "M >= 2"
        assert Sizes(3, 3).text("K") == "K = 3"
        assert Sizes(3, 5).text("K") == "3 <= K <= 5"


class TestAssumptions:
    @pytest.mark.parametrize(
        ("given", "names"),
        [
            (None, set()),
            (Assumption.GAUSSIAN, {"GAUSSIAN"}),
            ("iid", {"IID"}),
            ("Gaussian unit", {"GAUSSIAN"}),
            ("bounded, subgaussian", {"BOUNDED", "SUBGAUSSIAN"}),
            ("finite second moment , nonzero means", {"FINITE_SECOND_MOMENT", "NONZERO_MEAN"}),
            ("given train mean", {"GIVEN_TRAIN_MEAN"}),
            (["independence", Assumption.IID, ["bounded units"]], {"INDEPENDENT_SAMPLES", "IID", "BOUNDED"}),
        ],
    )
    def test_read(self, given, names) -> None:
        found = assumptions(given)
        assert isinstance(found, frozenset)
        assert {a.name for a in found} == names

    def test_every_value_and_name_is_a_phrase(self) -> None:
        for item in Assumption:
            assert assumptions(item.value) == assumptions(item.name.replace("_", " ").title()) == {item}


class TestOptions:
    def test_defaults(self) -> None:
        B = bound(lambda m, M, K: F(1, 2))
        assert (B.name, B.source, B.status, B.direction) == ("<lambda>", "user", "claimed", "upper")
        assert (B.assumptions, B.M, B.K) == (frozenset(), Sizes(), Sizes())
        assert B.inputs is Moments
        assert B.where is None
        assert B.symbolic is None

    def test_given(self) -> None:
        def condition(M, K):
            return M == K

        @bound(
            assumes="iid", M=2, K=(3, 9), where=condition, name="other", source="a book", inputs=TwoLawMoments
        )
        def mine(x, M, K):
            return x.mean

        assert (mine.name, mine.source, mine.M, mine.K) == ("other", "a book", Sizes(2, 2), Sizes(3, 9))
        assert mine.where is condition
        assert mine.inputs is TwoLawMoments
        with pytest.raises(TypeError, match=r"other: inputs=.*expected TwoLawMoments"):
            mine(m, 2, 3)
        for name in ("M", "K"):
            with pytest.raises(ValueError, match=rf"^{name}=0: expected a number >= 1"):
                bound(lambda m, M, K: 1, **{name: 0})

    def test_callable_without_a_name(self) -> None:
        B = bound(functools.partial(lambda c, m, M, K: c * m.t, F(3)))
        assert B.name == "bound"
        assert B(m, 1, 1) == 15

    def test_covers(self) -> None:
        B = Bound("b", lambda m, M, K: 1, M=Sizes(2, 5), K=Sizes(3), where=lambda M, K: M != K)
        assert B.covers(2, 3)
        assert not B.covers(1, 3)
        assert not B.covers(2, 2)
        assert not B.covers(3, 3)
        assert B.covers(3, 3) is False


class TestCalls:
    B = Bound("b", lambda m, M, K: m.a * M / K, M=Sizes(2, 5), K=Sizes(3, None))

    def test_types(self) -> None:
        value = self.B(Moments(1, 1, 1), 2, 3)
        assert type(value) is F
        assert value == F(2, 3)
        assert type(Bound("one", lambda m, M, K: 1)(m, 1, 1)) is F
        size = Bound("size", lambda m, M, K: M)(m, 4, 1)
        assert (type(size), size) == (F, 4)
        assert type(Bound("half", lambda m, M, K: 0.5)(m, 1, 1)) is float
        assert type(self.B(Moments(1.0, 1, 1), 2, 3)) is float
        assert type(Bound("one", lambda m, M, K: 1)(Moments(1.0, 1, 1), 1, 1)) is float
        array = self.B(Moments(np.float64(1), np.ones(2), 1), np.array([2, 4]), 3)
        assert array.tolist() == pytest.approx([2 / 3, 4 / 3])

    def test_integers_index_like_integers(self) -> None:
        B = Bound("sum", lambda m, M, K: sum((F(1, j + 1) for j in range(M)), F(0)))
        assert B(m, 3, 1) == F(11, 6)

    def test_sizes_in_arrays(self) -> None:
        floats = Moments(1.0, 1.0, 1.0)
        assert self.B(floats, np.array([2, 5]), np.array([3, 3])).shape == (2,)
        for M, K, message in (
            (np.array([2, 6]), 3, r"b: M=.*expected 2 <= M <= 5"),
            (np.array([1, 5]), 3, r"b: M=.*expected 2 <= M <= 5"),
            (2, np.array([3, 2]), r"b: K=.*expected K >= 3"),
            (2, 2, r"b: K=2: expected K >= 3"),
        ):
            with pytest.raises(ValueError, match=message):
                self.B(floats, M, K)

    def test_exact_records_join_the_arithmetic_of_the_sizes(self) -> None:
        value = Bound("b", lambda m, M, K: m.a * m.t)(m, np.array([2, 3]), 1)
        assert value.dtype == np.float64
        assert float(value) == pytest.approx(5 / 3)

    def test_where_is_for_single_sizes(self) -> None:
        B = Bound("b", lambda m, M, K: m.a / M, where=lambda M, K: M == K)
        assert B(m, 3, 3) == F(1, 9)
        with pytest.raises(ValueError, match="b: M=3, K=2: outside the condition `where`"):
            B(m, 3, 2)
        assert B(Moments(1.0, 1.0, 1.0), np.array([3]), np.array([2])).tolist() == pytest.approx([1 / 3])

    def test_symbols_pass_any_size(self) -> None:
        import sympy

        M = sympy.Symbol("M")
        assert self.B(m, M, 3) == M / 9
        assert self.B(m, M, 1) == M / 3  # nothing is checked beside a symbol

    def test_reference_value_takes_the_input_as_it_is(self) -> None:
        x = GaussianInput(np.array([1.0]), np.array([1.0]))
        assert 0.2 < P_gaussian(x, 1, 1) < 0.3
        with pytest.raises(ValueError, match=r"M=0: expected an integer >= 1"):
            P_gaussian(x, 0, 1)
        with pytest.raises(ValueError, match=r"K=0: expected an integer >= 1"):
            B_exact(m, 1, 0)


class TestBuiltinsInFormulas:
    def test_python_min_and_max_become_generic(self) -> None:
        B = bound(lambda m, M, K: max(min(m.a, m.t), M / K))
        array = Moments(np.array([9.0, 9.0]), np.array([2.0, 7.0]), np.array([3.0, 4.0]))
        assert B(array, 1, 1).tolist() == [2.0, 4.0]
        assert str(B.expression) == "Max(M/K, Min(a, t))"

    def test_defaults_closures_and_own_definitions_survive(self) -> None:
        c = F(3)

        def formula(m, M, K, scale=F(2), *, shift=F(1)):
            return c * scale * max(m.a, 0) + shift

        assert bound(formula)(Moments(np.array([1.0]), np.array([0.5]), 1), 1, 1).tolist() == [4.0]
        own = {"min": lambda *values: -1}
        exec("def formula(m, M, K):\n    return min(m.a, m.t)", own)
        assert bound(own["formula"])(Moments(1.0, np.ones(1), 1), 1, 1) == -1

    def test_a_class_works_as_formula(self) -> None:
        class Formula:
            def __call__(self, m, M, K):
                return m.a / M

        assert bound(Formula())(Moments(1.0, np.ones(1), 1.0), 2, 1).tolist() == [0.5]
        assert bound(Formula()).latex() == r"\frac{a}{M}"


class TestSymbols:
    def test_domains(self) -> None:
        symbols = B_fourth.symbols
        assert list(symbols) == ["mean", "variance", "third", "fourth", "M", "K"]
        assert [s.name for s in symbols.values()] == list(symbols)
        for name in ("mean", "third"):
            assert symbols[name].is_real
            assert symbols[name].is_nonnegative is None
        for name in ("variance", "fourth"):
            assert symbols[name].is_nonnegative
        for name in ("M", "K"):
            assert symbols[name].is_positive
            assert symbols[name].is_integer

    def test_trace_at_values(self) -> None:
        import sympy

        values = {"m2": sympy.Integer(2), "a": sympy.Rational(1, 3), "t": sympy.Integer(5)}
        got = B_exact.trace(values | {"M": sympy.Integer(3), "K": sympy.Integer(4)})
        assert got == sympy.Rational(*B_exact(m, 3, 4).as_integer_ratio())
        constant = Bound("half", lambda m, M, K: F(1, 2)).expression
        assert constant == sympy.Rational(1, 2)

    @pytest.mark.parametrize(
        "formula",
        [lambda m, M, K: m.unknown, lambda m, M, K: 1 if m.a > m.t else 2, lambda m, M, K: float(m.a)],
    )
    def test_no_expression(self, formula) -> None:
        with pytest.raises(TypeError, match=r"^name: the formula works on numbers only \(.+\); use exp"):
            _ = Bound("name", formula).expression


VALUES = {
    "m2": F(2),
    "a": F(1, 3),
    "t": F(5),
    "V": F(1, 9) + F(1, 12) + F(5, 12),
    "d_par": F(12),
    "d_2": F(4, 5),
    "d_align": F(4, 5),
    "n_eff": F(12, 8),
    "M": F(3),
    "K": F(4),
}


class TestFromSympy:
    @pytest.mark.parametrize("name", VALUES)
    def test_every_name(self, name: str) -> None:
        import sympy

        B = bound(1 / (3 + sympy.Symbol(name)))
        expected = 1 / (3 + VALUES[name])
        assert B(m, 3, 4) == expected
        assert type(B(m, 3, 4)) is F
        assert B(Moments(2.0, 1 / 3, 5.0), 3, 4) == pytest.approx(float(expected), rel=1e-14)
        arrays = Moments(np.full(2, 2.0), 1 / 3, 5.0)
        value = B(arrays, np.array([3, 3]), 4)
        np.testing.assert_allclose(value, float(expected), rtol=1e-14)
        assert B.name == f"1/({name} + 3)"

    def test_functions(self) -> None:
        import sympy

        a, t, M, K = sympy.symbols("a t M K")
        arrays = Moments(9.0, np.array([1.0, 4.0]), np.array([2.0, 3.0]))
        for expression, exact, array in (
            (sympy.Min(a, t), F(1, 3), [1.0, 3.0]),
            (sympy.Max(a, t), F(5), [2.0, 4.0]),
            (sympy.exp(-a), math.exp(-1 / 3), [math.exp(-1), math.exp(-4)]),
            (sympy.log(t), math.log(5), [math.log(2), math.log(3)]),
            (sympy.sqrt(a) / sympy.sqrt(t), math.sqrt(1 / 15), [math.sqrt(1 / 2), math.sqrt(4 / 3)]),
            (M / (M + K), F(1, 3), [1 / 3, 1 / 3]),
        ):
            B = bound(expression, name="given")
            assert B.name == "given"
            assert B.expression == expression
            assert B(m, 1, 2) == pytest.approx(exact)
            assert type(B(m, 1, 2)) is (F if isinstance(exact, F) else float)
            assert np.broadcast_to(B(arrays, 1, 2), 2).tolist() == pytest.approx(array)

    def test_tensors(self) -> None:
        torch = pytest.importorskip("torch")
        import sympy

        a, t, n = sympy.symbols("a t n_eff")
        tensors = Moments(9.0, torch.tensor([1.0, 4.0], dtype=torch.float64), torch.tensor([2.0, 3.0]))
        for expression, expected in (
            (sympy.Max(a, t) + n, [2 + 6 / 6, 4 + 6 / 6]),
            (sympy.Min(a, t), [1.0, 3.0]),
            (
                sympy.exp(-a) + sympy.sqrt(t) + sympy.log(t),
                [math.exp(-x) + math.sqrt(y) + math.log(y) for x, y in ((1, 2), (4, 3))],
            ),
        ):
            value = bound(expression)(tensors, 2, 3)
            assert value.dtype == torch.float64
            assert value.tolist() == pytest.approx(expected, rel=1e-12)

    def test_poles(self) -> None:
        import sympy

        B = bound(1 / sympy.Symbol("a"))
        with pytest.raises(ZeroDivisionError, match=r"1/a at \{a: 0\}"):
            B(Moments(F(1), F(0), F(1)), 1, 1)

    def test_unknown_symbols_are_named(self) -> None:
        import sympy

        y, x, a = sympy.symbols("y x a")
        with pytest.raises(ValueError, match=r"symbols \['x', 'y'\] in .*: expected only m2, a, t, V, d_par"):
            bound(y + x + a)


class TestRecords:
    def test_variance_in_every_arithmetic(self) -> None:
        sympy = pytest.importorskip("sympy")
        expected = F(1, 3) * (F(1, 3) + F(1, 4)) + F(5, 12)
        assert m.variance(3, 4) == expected
        floats = Moments(2.0, 1 / 3, 5.0)
        assert type(floats.variance(3, 4)) is float
        assert floats.variance(3, 4) == pytest.approx(float(expected), rel=1e-15)
        assert floats.variance(np.array([3, 3]), 4).tolist() == pytest.approx([float(expected)] * 2)
        M = sympy.Symbol("M")
        assert sympy.simplify(m.variance(M, 4) - (F(1, 3) / M + F(1, 12) + F(5, 4) / M)) == 0
        x = TwoLawMoments(F(1), F(2), F(3), F(5))
        expected = F(2, 3) + F(3, 4) + F(5, 12)
        assert x.variance(3, 4) == expected
        assert x.variance(np.array([3, 3]), 4).tolist() == pytest.approx([float(expected)] * 2)
        for record in (m, x):
            with pytest.raises(ValueError, match=r"^M=0"):
                record.variance(0, 1)
            with pytest.raises(ValueError, match=r"^K=0"):
                record.variance(1, 0)

    def test_effective_size(self) -> None:
        sympy = pytest.importorskip("sympy")
        assert n_eff(3, 4) == F(12, 8)
        assert type(n_eff(3, 4)) is F
        assert n_eff(np.array([3, 1]), 4).tolist() == [1.5, 4 / 6]
        M, K = sympy.symbols("M K")
        assert n_eff(M, K) == M * K / (M + K + 1)
        with pytest.raises(ValueError, match=r"^M=0"):
            n_eff(0, 1)
        with pytest.raises(ValueError, match=r"^K=0"):
            n_eff(1, 0)

    @pytest.mark.parametrize("extra", [0.0, 1e-10])
    def test_rounding_is_allowed_in_floats(self, extra: float) -> None:
        ConditionalMoments(0.6, 0.64 + extra, 1.0)
        ConditionalMoments(np.array([0.6]), 0.64 + extra, 1.0)
        StatisticMoments(1.0, 1.0, 2.0, 5.0 - extra)
        StatisticMoments(1.0, np.array([1.0]), 2.0, 5.0 - extra)
        Moments(2.0, 1.0 + extra, 0.25)

    def test_limits_are_exact_for_fractions_and_tight_for_floats(self) -> None:
        tiny = F(1, 10**15)
        ConditionalMoments(F(3, 5), F(16, 25), 1)
        StatisticMoments(1, 1, 2, 5)
        Moments(F(2), F(1), F(1, 4))
        with pytest.raises(ValueError, match=r"variance \+ mean\^2 <= radius\^2"):
            ConditionalMoments(F(3, 5), F(16, 25) + tiny, 1)
        with pytest.raises(ValueError, match="Pearson"):
            StatisticMoments(1, 1, 2, 5 - tiny)
        with pytest.raises(
            ValueError, match=r"^Moments\(m2=Fraction\(2, 1\), a=.*, t=.*\): expected a\^2 <= m2\^2 t"
        ):
            Moments(F(2), F(1) + tiny, F(1, 4))
        with pytest.raises(ValueError, match=r"variance \+ mean\^2 <= radius\^2"):
            ConditionalMoments(0.6, 0.64 + 1e-7, 1.0)
        with pytest.raises(ValueError, match="Pearson"):
            StatisticMoments(1.0, 1.0, 2.0, 5.0 - 1e-7)
        with pytest.raises(ValueError, match=r"a\^2 <= m2\^2 t"):
            Moments(2.0, 1.0 + 1e-7, 0.25)

    def test_unequal_numbers(self) -> None:
        """Products, not powers or sums, in the limits: values where the two differ."""
        ConditionalMoments(F(1), F(2), F(7, 4))
        StatisticMoments(F(0), F(1, 2), F(1, 4), F(3, 8))
        with pytest.raises(ValueError, match="Pearson"):
            StatisticMoments(F(0), F(1, 2), F(1, 4), F(3, 8) - F(1, 99))
        with pytest.raises(ValueError, match="radius"):
            ConditionalMoments(F(1), F(2), F(17, 10))

    def test_symbols_are_not_validated(self) -> None:
        sympy = pytest.importorskip("sympy")
        x = sympy.Symbol("x")
        assert Moments(-x, x, 1).m2 == -x
        assert Moments(x, 1, F(1, 2)).t == sympy.Rational(1, 2)
        assert isinstance(Moments(x, 1, F(1, 2)).t, sympy.Rational)
        assert ConditionalMoments(x, 1, 0).radius == 0
        assert StatisticMoments(x, 1, 1, 0).fourth == 0
        assert SubGaussianMoments(x, 0, 0).proxy == 0

    def test_fractions_beyond_floats(self) -> None:
        huge = F(10**400)
        assert Moments(huge, huge, huge).d_align == huge

    def test_signs(self) -> None:
        assert TwoLawMoments(-1, 0, 0, 0).mean == -1
        assert ConditionalMoments(-1, 0, 1).mean == -1
        assert StatisticMoments(-1, 1, -1, 2).third == -1
        for record, names in (
            (TwoLawMoments, ("a_train", "a_test", "t")),
            (ConditionalMoments, ("variance", "radius")),
            (StatisticMoments, ("variance", "fourth")),
            (SubGaussianMoments, ("m2", "proxy", "dimension")),
        ):
            for name in names:
                values = {f.name: 1 for f in fields(record)} | {name: -1}
                with pytest.raises(
                    ValueError, match=rf"^{record.__name__}: {name}=-1: expected a value >= 0"
                ):
                    record(**values)
        with pytest.raises(ValueError, match="mean=inf: expected a finite value"):
            TwoLawMoments(math.inf, 1.0, 1.0, 1.0)
        with pytest.raises(ValueError, match="expected a finite value"):
            TwoLawMoments(np.array([1.0, math.nan]), 1.0, 1.0, 1.0)
        with pytest.raises(
            TypeError, match=r"TwoLawMoments\(mean=None, a_train=1, a_test=2, t='x'\): expected num"
        ):
            TwoLawMoments(None, 1, 2, "x")

    def test_sub_gaussian_edges(self) -> None:
        assert SubGaussianMoments(0, F(1, 9), 1).dimension == 1
        assert SubGaussianMoments(1.0, np.array([0.5, 2.0]), 3).proxy.tolist() == [0.5, 2.0]
        for proxy, d in (
            (0, 1),
            (1, 0),
            (F(1), F(1, 2)),
            (np.array([1.0, 0.0]), 1),
            (1, np.array([1.0, 0.5])),
        ):
            with pytest.raises(ValueError, match="expected proxy > 0 and dimension >= 1"):
                SubGaussianMoments(1, proxy, d)

    def test_rescaled(self) -> None:
        assert m.rescaled() == (2, F(1, 3), 5)
        m2, a, t = Moments(4.0, 16.0, 64.0).rescaled()
        assert (m2, a, t) == (0.5, 0.25, 1.0)
        assert Moments(0.0, 0.0, 0.0).rescaled() == (0.0, 0.0, 0.0)
        for r in Moments(1e-160, 1e-316, 1e-310).rescaled():
            assert 0 < r <= 1
        assert max(Moments(4.0, 2.0, 1.0).rescaled()) == 1.0
        assert max(Moments(1.0, 4.0, 16.0).rescaled()) == 1.0
        arrays = Moments(np.array([0.0, 4.0]), np.array([0.0, 16.0]), np.array([0.0, 64.0])).rescaled()
        assert [x.tolist() for x in arrays] == [[0.0, 0.5], [0.0, 0.25], [0.0, 1.0]]

    def test_dimensions(self) -> None:
        assert (m.d_par, m.d_2, m.d_align) == (12, F(4, 5), F(4, 5))
        wide = Moments(F(2), F(2), F(1))
        assert (wide.d_par, wide.d_2, wide.d_align) == (2, 4, 2)
        floats = Moments(np.array([2.0, 2.0]), np.array([1 / 3, 2.0]), np.array([5.0, 1.0]))
        assert floats.d_align.tolist() == pytest.approx([0.8, 2.0])

    def test_from_arrays(self) -> None:
        torch = pytest.importorskip("torch")
        assert Moments.from_arrays([1, 2], [3, 4]) == Moments(5.0, 19.0, 25.0)
        full = Moments.from_arrays([1, 2], [[3, 1], [1, 4]])
        assert (full.m2, full.a, full.t) == (5.0, 23.0, 27.0)
        assert Moments.from_arrays([1.0], [[0.0]]) == Moments(1.0, 0.0, 0.0)
        large = np.array([10**10])  # as integers the products would overflow
        assert Moments.from_arrays(large, large) == Moments(1e20, 1e30, 1e20)
        single = Moments.from_arrays(torch.tensor([1.0, 2.0]), torch.tensor([[3.0, 1.0], [1.0, 4.0]]))
        assert (single.m2, single.a, single.t) == (5.0, 23.0, 27.0)
        assert type(single.a) is float
        for mu, Sigma in (([[1.0]], [[1.0]]), ([1.0, 2.0], [1.0]), ([1.0, 2.0], np.ones((2, 2, 2)))):
            with pytest.raises(ValueError, match=r"expected \(d,\) and \(d, d\)"):
                Moments.from_arrays(mu, Sigma)
        with pytest.raises(TypeError, match="Multiple namespaces"):
            Moments.from_arrays(np.ones(2), torch.eye(2))
        nearly = 1e6 * np.array([[1.0, 0.5 + 1e-9], [0.5, 1.0]])
        assert Moments.from_arrays([1.0, 0.0], nearly).m2 == 1.0
        with pytest.raises(ValueError, match=r"Sigma is not symmetric.*\(Sigma \+ Sigma\.T\) / 2"):
            Moments.from_arrays([1.0, 0.0], [[1.0, 0.5 + 1e-7], [0.5, 1.0]])
        x = GaussianInput([1, 2], [[3, 1], [1, 4]])
        assert x.moments == full

    def test_from_laws(self) -> None:
        law = FiniteLaw([(3, 2), (0, -2), (1, 1)], ["1/5", "3/5", "1/5"])
        other = FiniteLaw([(1, 0), (2, 5)], ["2/3", "1/3"])
        assert Moments.from_law(law) == Moments(*law.scalars())
        x = TwoLawMoments.from_laws(law, other)
        mu1, mu2 = np.array(law.mean()), np.array(other.mean())
        S1, S2 = np.array(law.covariance()), np.array(other.covariance())
        assert x == TwoLawMoments(mu1 @ mu2, mu2 @ S1 @ mu2, mu1 @ S2 @ mu1, np.trace(S1 @ S2))
        with pytest.raises(ValueError, match="dimensions 2 and 1"):
            TwoLawMoments.from_laws(law, coin())
        y = ConditionalMoments.from_law(other, (F(1), F(-1)))
        assert y == ConditionalMoments(F(-1, 3), F(32, 9), 3)

    def test_laws_of_unequal_lengths_are_noticed(self) -> None:
        """Whatever plays a law must have one weight per atom, and atoms of one dimension."""
        law = coin()
        short = SimpleNamespace(atoms=law.atoms, weights=law.weights[:1])
        ragged = SimpleNamespace(atoms=((F(1), F(2)), (F(3),)), weights=(F(1, 2), F(1, 2)))
        for pair in ((short, law), (law, short), (ragged, ragged)):
            with pytest.raises((ValueError, IndexError)):
                TwoLawMoments.from_laws(*pair)
        with pytest.raises(ValueError, match="zip"):
            ConditionalMoments.from_law(short, (1,))
        with pytest.raises(ValueError, match="zip"):
            ConditionalMoments.from_law(law, (1, 2))


class TestFormulas:
    def test_regrouping_in_every_arithmetic(self) -> None:
        torch = pytest.importorskip("torch")
        for b in (1, 2, F(5, 2), 0.3, 7):
            expected = 1 / (1 + F(12) / (7 + F(b)) * min(F(12), F(b) * F(4, 5)))
            assert float(B_regrouped(b)(m, 3, 4)) == pytest.approx(float(expected), rel=1e-14)
            B = B_regrouped(b)
            assert B.name == f"B_regrouped({b})"
            assert B(Moments(2.0, 1 / 3, 5.0), 3, 4) == pytest.approx(float(expected), rel=1e-14)
            arrays = Moments(np.array([2.0, 2.0]), 1 / 3, 5.0)
            assert B(arrays, np.array([3, 3]), 4).tolist() == pytest.approx([float(expected)] * 2, rel=1e-14)
            tensors = Moments(torch.tensor([2.0]), 1 / 3, 5.0)
            assert B(tensors, 3, 4).tolist() == pytest.approx([float(expected)], rel=1e-14)
        assert type(B_regrouped(2)(m, 3, 4)) is F
        wide = Moments(F(2), F(2), F(1))  # here a decides
        assert B_regrouped(3)(wide, 3, 4) == 1 / (1 + F(12, 10) * 2)
        assert B_regrouped(F(1, 4))(wide, 3, 4) == 1 / (1 + F(12) / (7 + F(1, 4)) * 1)
        for bad in (0, -1, F(0), True):
            with pytest.raises(ValueError, match=f"^b={re.escape(repr(bad))}"):
                B_regrouped(bad)

    def test_regrouping_says_what_it_needs(self) -> None:
        B = B_regrouped(F(5, 2))
        assert B.assumptions == B_exact.assumptions
        assert (B.status, B.direction, B.inputs, B.domain) == ("proved", "upper", Moments, B_exact.domain)
        assert "d_par/d_2" in B.tightness
        assert "regrouping" in B.source

        assert B.tightness == "equals B_exact iff b = d_par/d_2"
        assert B.source == "docs page 'Bounds', regrouping identity"

    def test_expressions_are_division_free_where_0_over_0_threatens(self) -> None:
        """The form matters: a solver reads V/(V + m2^2) with the sizes multiplied out, and d_par nowhere."""
        z3 = pytest.importorskip("z3")
        assert str(B_exact.expression) == "(a*(K + M) + t)/(K*M*m2**2 + a*(K + M) + t)"
        assert str(B_align.expression) == "(K + M + 1)*Max(a, t)/(K*M*m2**2 + (K + M + 1)*Max(a, t))"
        assert (
            str(B_regrouped(4).expression) == "(K + M + 4)*Max(a, t/4)/(K*M*m2**2 + (K + M + 4)*Max(a, t/4))"
        )
        symbols = Moments(*z3.Reals("m2 a t"))
        assert str(B_exact(symbols, *z3.Reals("M K"))) == "((M + K)*a + t)/((M + K)*a + t + M*K*m2*m2)"

    def test_far_off_the_cone_nothing_overflows(self) -> None:
        """The refusal itself must not warn: a is part of the unit that the moments are rescaled to."""
        for one in (1e300, np.array([1e300])):
            with pytest.raises(ValueError, match=r"expected a\^2 <= m2\^2 t"):
                Moments(one * 0 + 1e-300, one, one * 0 + 1e-300)

    def test_chebyshev_and_two_laws(self) -> None:
        assert B_chebyshev(m, 3, 4) == m.variance(3, 4) / 4
        assert B_chebyshev(Moments(0, 0, 0), 3, 4) == 1
        x = TwoLawMoments(F(2), F(1), F(3), F(5))
        V = x.variance(3, 4)
        assert B_two_laws(x, 3, 4) == V / (V + 4)
        assert B_two_laws(TwoLawMoments(2.0, 1.0, 3.0, 5.0), 3, 4) == pytest.approx(float(V / (V + 4)))
        assert B_two_laws(TwoLawMoments(0, 1, 1, 1), 1, 1) == 1
        assert B_two_laws(TwoLawMoments(1, 0, 0, 0), 1, 1) == 0

    def test_if_positive(self) -> None:
        torch = pytest.importorskip("torch")
        sympy = pytest.importorskip("sympy")
        assert if_positive(F(1), F(1, 4)) == F(1, 4)
        for mean in (F(0), F(-1)):
            value = if_positive(mean, F(1, 4))
            assert (type(value), value) == (F, 1)
        assert type(if_positive(-1.0, 0.25)) is float
        assert if_positive(np.array([-1.0, 0.0, 0.5, 2.0]), 0.25).tolist() == [1.0, 1.0, 0.25, 0.25]
        assert if_positive(1.0, np.array([0.25, 0.5])).tolist() == [0.25, 0.5]
        assert if_positive(torch.tensor([-1.0, 2.0]), 0.25).tolist() == [1.0, 0.25]
        x = sympy.Symbol("x")
        assert if_positive(x, x / 2) == x / 2

    def test_conditional_values(self) -> None:
        mean, variance, radius, K = F(1, 5), F(1, 3), F(2), 6
        expected = {
            B_conditional_cantelli: variance / (variance + K * mean**2),
            B_conditional_bernstein: math.exp(
                -K * mean**2 / (2 * variance + F(2, 3) * (mean + radius) * mean)
            ),
            B_conditional_hoeffding: math.exp(-K * mean**2 / (2 * radius**2)),
        }
        for B, value in expected.items():
            assert float(B(ConditionalMoments(mean, variance, radius), 1, K)) == pytest.approx(
                float(value), rel=1e-14
            )
            arrays = ConditionalMoments(np.array([0.2, -0.2]), 1 / 3, 2.0)
            assert B(arrays, 1, K).tolist() == pytest.approx([float(value), 1.0], rel=1e-14)
            for mean_ in (0, -1):
                assert B(ConditionalMoments(mean_, 0, 1), 1, 1) == 1
        sure = ConditionalMoments(1, 0, 1)  # X = 1 with certainty
        assert B_conditional_cantelli(sure, 1, 1) == 0
        point = ConditionalMoments(0.0, 0.0, 0.0)
        assert [B(point, 1, 1) for B in expected] == [1, 1, 1]

    def test_fourth_moment_values(self) -> None:
        def written_out(s, V, c3, c4):
            D, lift = V * c4 - c3**2 - V**3, s * s * V + s * c3 - V * V
            return V * D / (D * (V + s * s) + lift**2) if lift > 0 else V / (V + s * s)

        cases = [(3, 1, F(1, 2), 4), (F(6, 5), 1, 0, 3), (F(1, 2), 1, 0, 3), (2, F(1, 2), F(-1, 3), 2)]
        for case in cases:
            exact = B_fourth(StatisticMoments(*case), 1, 1)
            assert exact == written_out(*map(F, case))
            floats = tuple(map(float, case))
            assert B_fourth(StatisticMoments(*floats), 1, 1) == pytest.approx(float(exact), rel=1e-13)
        columns = [np.array([float(case[i]) for case in cases]) for i in range(4)]
        values = B_fourth(StatisticMoments(*columns), 1, 1)
        assert values.tolist() == pytest.approx(
            [float(written_out(*map(F, case))) for case in cases], rel=1e-13
        )
        assert B_fourth(StatisticMoments(-1, 1, 0, 3), 1, 1) == 1
        two_points = StatisticMoments(3.0, 0.1, 0.0, 0.1 * 0.1 * (1 - 1e-12))  # a gap below 0 by rounding
        assert B_fourth(two_points, 1, 1) == 0.0
        arrays = StatisticMoments(np.array([3.0]), 0.1, 0.0, 0.1 * 0.1 * (1 - 1e-12))
        assert B_fourth(arrays, 1, 1).tolist() == [0.0]

    def test_sub_gaussian_values(self) -> None:
        torch = pytest.importorskip("torch")

        def written_out(m2, proxy, d, M, K):
            u = np.arange(512) / 512
            rate = m2 / proxy * u * (u * (M + K) - 2 * math.sqrt(M * K)) / (2 * (1 - u**2))
            return float(np.min(np.exp(rate) * (1 - u**2) ** (-d / 2)))

        for case in ((1.0, 2.0, 3, 4, 9), (5.0, 0.5, 1, 2, 2), (0.1, 1.0, 10, 1, 30)):
            expected = written_out(*case)
            m2, proxy, d, M, K = case
            assert B_subgaussian(SubGaussianMoments(m2, proxy, d), M, K) == pytest.approx(expected, rel=1e-12)
            value = B_subgaussian(SubGaussianMoments(torch.tensor([m2], dtype=torch.float64), proxy, d), M, K)
            assert value.dtype == torch.float64
            assert value.tolist() == pytest.approx([expected], rel=1e-12)
        assert type(B_subgaussian(SubGaussianMoments(1, 1, 1), 2, 2)) is float
        assert B_subgaussian(SubGaussianMoments(0.0, 1.0, 3), 2, 2) == 1.0

    def test_weights_reach_the_published_summary(self) -> None:
        """d_par decides in one case, d_2 in the other; exchanged or averaged dimensions give other values."""
        assert B_align(Moments(F(2), F(2), F(1)), 3, 4) == 1 / (1 + n_eff(3, 4) * 2)
        assert B_align(m, 3, 4) == 1 / (1 + n_eff(3, 4) * F(4, 5))
        assert minimum(m.d_par, m.d_2) == m.d_align
