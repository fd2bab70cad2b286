"""The parts of the campaign, by name."""

from __future__ import annotations

from ..case import Part
from . import (
    commands,
    concurrency,
    courses,
    fits,
    inputs,
    laws,
    leak,
    programs,
    reference,
    special,
    steppers,
    transforms,
)

PARTS: dict[str, Part] = {
    m.PART.name: m.PART
    for m in (
        reference,
        courses,
        fits,
        commands,
        steppers,
        programs,
        laws,
        transforms,
        inputs,
        special,
        concurrency,
        leak,
    )
}
