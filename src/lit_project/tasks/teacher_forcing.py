"""How often the decoder is told the true token in training."""

from collections.abc import Sequence


class TeacherForcing:
    """The ratio at an optimizer step (scheduled sampling, Bengio et al. 2015).

    Args:
        ratio: a number, or points (step, ratio) with straight lines between them; constant before and after.

    Raises:
        ValueError: a ratio outside [0, 1], no point, or steps that do not ascend.
    """

    def __init__(self, ratio: float | Sequence[tuple[int, float]]) -> None:
        points = [(0, ratio)] if isinstance(ratio, int | float) else list(ratio)
        steps = [step for step, _ in points]
        if not points or steps != sorted(set(steps)) or not all(0 <= value <= 1 for _, value in points):
            raise ValueError(f"teacher_forcing_ratio must be in [0, 1], or points [step, ratio] by step, got {ratio}")
        self.points = [(int(step), float(value)) for step, value in points]

    def __call__(self, step: int) -> float:
        """The ratio at optimizer step `step`, counted from 0."""
        before = (0, self.points[0][1])
        for point in self.points:
            if step < point[0]:
                return before[1] + (point[1] - before[1]) * (step - before[0]) / (point[0] - before[0])
            before = point
        return before[1]
