"""Figures: what they say is what is so."""

import io
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure
from PIL import Image

import unsoftmax as us
from tests.report.results import COURSE, random_heads, recovery_of
from unsoftmax.figures import run_panels
from unsoftmax.figures.model_panels import (
    largest_of_blocks,
    matrices,
    matrix_panels,
    spectrum_panel,
)
from unsoftmax.figures.panel import THEME, Panel, arranged, scientific, write_png
from unsoftmax.protocol import Course, Evidence
from unsoftmax.report.recovery_section import parameter_rows


def there(panel):
    assert panel is not None
    return panel


@given(st.integers(1, 12), st.integers(1, 12), st.integers(1, 5), st.integers(0, 1000))
def test_a_pixel_is_the_largest_entry_of_its_block(rows, columns, step, seed):
    array = np.random.default_rng(seed).standard_normal((rows, columns))
    small = largest_of_blocks(array, step)
    assert small.shape == (-(-rows // step), -(-columns // step))
    for (i, j), pixel in np.ndenumerate(small):
        block = array[i * step : (i + 1) * step, j * step : (j + 1) * step]
        assert pixel in block
        assert abs(pixel) == np.max(np.abs(block))


def test_the_pixels_of_a_heat_map_have_the_matrixs_signs_and_places():
    """Read back from the picture: red where the entry is above 0, blue where it is below."""
    W = np.random.default_rng(3).choice([-1.0, 1.0], (5, 5))
    [panel] = matrix_panels(matrices(us.SingleHead(W, np.ones(5))))
    figure = Figure(figsize=(4, 4))
    axis = figure.add_axes((0, 0, 1, 1))
    panel.draw(axis)
    axis.set_position((0, 0, 1, 1))
    axis.set_axis_off()
    for other in figure.axes[1:]:
        other.remove()
    file = io.BytesIO()
    figure.savefig(file, dpi=50, format="png")
    pixels = np.asarray(Image.open(file).convert("RGB"), dtype=float)
    seen = pixels[20::40, 20::40]
    assert np.array_equal(np.sign(seen[..., 0] - seen[..., 2]), W)


def test_matrices_of_every_class():
    head = us.SingleHead.from_factors(np.ones((2, 4)), np.ones((2, 4)), np.ones(4))
    [W] = matrices(head)
    assert (W.name, W.shape) == ("W", "4 × 4")
    assert W.norm == pytest.approx(8.0)
    assert W.spectrum(0) == pytest.approx([8.0, 0.0], abs=1e-12)
    names = [m.name for m in matrices(random_heads(2))]
    assert names == ["W of head 0", "W of head 1"]
    network = us.ReluNetwork(np.ones((3, 2)), np.ones(2))
    assert [m.name for m in matrices(us.Transformer(np.eye(3), network))] == ["W", "network.A"]
    assert matrices(object()) == []


def test_matrices_of_a_layer():
    rng = np.random.default_rng(0)
    factored = us.LayerHead.from_factors(*(rng.standard_normal(s) for s in ((2, 1), *[(1, 3)] * 3)))
    dense = us.LayerHead(rng.standard_normal((2, 3)), rng.standard_normal((3, 3)))
    layer = us.AttentionLayer([factored, dense], np.ones(2))
    found = matrices(layer)
    assert [m.name for m in found] == [f"{n} of head {h}" for n in "WM" for h in (0, 1)]
    for matrix, head in zip(found, [*layer.heads] * 2, strict=True):
        whole = head.W if matrix.name[0] == "W" else head.M
        np.testing.assert_array_equal(matrix.array, whole)
        true = np.linalg.svd(whole, compute_uv=False)
        spectrum = matrix.spectrum(9)
        assert spectrum is not None
        np.testing.assert_allclose(spectrum, true[: len(spectrum)], atol=1e-12)
    large = matrices(layer, products=1)
    assert [m.name for m in large] == [
        f"{n} of head {h}" for n, h in (("K", 0), ("Q", 0), ("W", 1), ("O", 0), ("V", 0), ("M", 1))
    ]
    names = [name for name, _, _ in parameter_rows(layer)]
    assert names == [*(m.name for m in found), "heads.0.w", "heads.1.w", "c", "residual"]


def test_the_spectrum_is_that_of_the_matrix():
    model = random_heads(3, 5)
    panel = there(spectrum_panel(matrices(model), {"W": 1e-3}))
    axis = Figure().subplots()
    panel.draw(axis)
    heights = [np.asarray(line.get_ydata(), dtype=float) for line in axis.lines]
    drawn = [values for values in heights if len(values) == 5]
    true = [np.linalg.svd(W, compute_uv=False) for W in model.W]
    assert np.allclose(drawn, true)
    assert scientific(max(s[0] for s in true)) in panel.described
    assert "below the bound on ‖ΔW‖, 0.001, are not told from 0" in panel.described
    assert spectrum_panel(matrices(model), {}, largest=4) is None
    few = there(spectrum_panel(matrices(model), {}, most=2))
    assert "the first 2 of 3 heads" in few.described
    assert "not told" not in few.described


def test_residuals_are_those_of_the_evidence():
    missed, allowed = np.array([0.0, 3e-9, 1e-9]), np.array([1e-8, 1e-9, 1e-8])
    panel = there(run_panels.residuals_panel(Evidence.of(3, missed, allowed)))
    assert panel.described.startswith("2 of 3 residuals are within their tolerance.")
    assert "The largest is 3.0e-9" in panel.described
    assert "1 are 0" in panel.note
    axis = Figure().subplots()
    panel.draw(axis)
    assert np.array_equal(np.asarray(axis.lines[1].get_ydata())[1:], [1e-9, 3e-9])
    assert run_panels.residuals_panel(Evidence.of(0, np.zeros(0), np.zeros(0))) is None


def test_evidence_keeps_a_fair_share_of_many_residuals():
    missed = np.random.default_rng(0).permutation(10_000) / 10_000
    kept = np.array(Evidence.of(10_000, missed, np.ones(10_000)).residuals)
    assert len(kept) == Evidence.MOST
    assert kept[-1, 0] == missed.max()
    assert np.allclose(np.diff(kept[:, 0]), 1 / (Evidence.MOST - 1), atol=2e-4)


def test_the_course_is_drawn_as_it_was():
    over_time, by_phase = run_panels.course_panels(COURSE)
    assert "322 answers came in 2.5 seconds." in over_time.described
    assert "10 answers were in the ledger before" in over_time.note
    assert "W: 260; " in by_phase.described
    axis = Figure().subplots()
    over_time.draw(axis)
    assert [np.asarray(line.get_ydata()).tolist() for line in axis.lines[:3]] == [
        [10, 10, 40],
        [40, 40, 300],
        [300, 300, 332],
    ]
    assert run_panels.course_panels(None) == run_panels.course_panels(Course()) == []
    phases = {f"phase {n}": (n + 1, 1.0) for n in range(20)}
    many = Course(((1.0, 210, "phase 19"),), phases)
    panels = run_panels.course_panels(many, bars=3, coloured=2)
    assert panels[1].described.endswith("17 other phases: 153.")
    arranged(panels, "many")


def test_bounds_and_powers_without_anything_finite_have_no_panel():
    assert run_panels.bounds_panel({"W": np.inf, "v": 0.0}, {}) is None
    assert run_panels.power_panel({"W": np.inf}) is None
    assert "v is off by at most 0.01." in there(run_panels.bounds_panel({"v": 0.01}, {})).described
    many = there(run_panels.power_panel({str(n): 1e-3 for n in range(50)}, bars=5))
    assert many.note.endswith("45 tensors more are in the table.")


def test_a_panel_described_is_a_panel_for_everybody():
    for panel in [
        *matrix_panels(matrices(random_heads())),
        *run_panels.course_panels(COURSE),
        run_panels.bounds_panel({"W": 1e-3}, {"W": 2.0}),
    ]:
        assert isinstance(panel, Panel)
        assert len(panel.described) > 20
        assert panel.title


def contrast(one, other):
    def luminance(colour):
        channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def test_colours_differ_and_stand_out_of_paper():
    names = THEME.names()
    assert len({*names.values()}) == len(names)
    for name, colour in names.items():
        assert contrast(colour, THEME.paper) >= (1.2 if name == "grid" else 4.5), name


def test_a_notebook_sees_the_same_figures(tmp_path):
    recovery = recovery_of(random_heads())
    figure = recovery.plot()
    titles = [axis.get_title() for axis in figure.axes]
    for title in ("Answers over time", "What the certificate bounds", "Answers by phase"):
        assert title in titles
    assert sum("of head" in title for title in titles) == 3
    write_png(figure, tmp_path / "x.png")
    with Image.open(tmp_path / "x.png") as picture:
        assert picture.size[0] > 600
    shown = recovery._repr_html_()
    assert "data:image/png;base64," in shown
    assert 'alt="MultiHead(H=3, d=6)' in shown
    recovery_of(random_heads(0, 2), course=None).plot()


def test_without_matplotlib_a_notebook_sees_the_table(monkeypatch):
    monkeypatch.setitem(sys.modules, "unsoftmax.figures.panel", None)
    recovery = recovery_of(random_heads())
    with pytest.raises(ImportError, match=r"pip install 'unsoftmax\[report\]'"):
        recovery.plot()
    shown = recovery._repr_html_()
    assert "<table>" in shown
    assert "<img" not in shown
