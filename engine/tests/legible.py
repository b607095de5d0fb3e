"""Checks whether all text in a figure is legible, that is, inside the figure and not overlapping."""

from itertools import combinations
from unittest.mock import patch

from matplotlib.text import Text


def illegible(figure):
    """Return labels that extend outside the figure, and pairs of overlapping labels. One pixel is tolerated."""
    drawn, draw = {}, Text.draw

    def record(text, renderer):
        if text.get_visible() and text.get_text().strip():
            drawn[text] = text.get_window_extent(renderer)
        draw(text, renderer)

    with patch.object(Text, "draw", record):
        figure.draw_without_rendering()
    width, height = figure.canvas.get_width_height()
    wrong = [
        text.get_text()
        for text, box in drawn.items()
        if min(box.x0, box.y0) < -1 or box.x1 > width + 1 or box.y1 > height + 1
    ]
    # Bounding boxes of rotated labels may overlap even if the labels do not.
    boxes = [(text.get_text(), box) for text, box in drawn.items() if text.get_rotation() % 90 == 0]
    for (one, a), (other, b) in combinations(boxes, 2):
        if min(a.x1, b.x1) - max(a.x0, b.x0) > 1 and min(a.y1, b.y1) - max(a.y0, b.y0) > 1:
            wrong.append((one, other))
    return wrong
