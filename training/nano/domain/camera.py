"""Questions about the camera's picture: colour, shape, digit, count."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from training.nano.domain.kinds import Context, Scene, contextual
from training.nano.domain.spoken_numbers import cardinal
from training.nano.domain.words import SCENE_COLOURS, SCENE_SHAPES

BLIND = "I can not see anything. Please turn on the camera."
NO_DIGIT = "I see no number."
DIGIT = "digit"
MOST_THINGS = 5


def draw_scene(random: Random) -> Scene:
    colour = random.choice(SCENE_COLOURS)
    if random.random() < 0.4:
        return Scene(colour, DIGIT, cardinal(random.randrange(10)), "one")
    count = cardinal(random.randint(1, MOST_THINGS))
    return Scene(colour, random.choice(SCENE_SHAPES), "", count)


def caption(scene: Scene) -> str:
    if scene.shape == DIGIT:
        return f"the {scene.colour} number {scene.digit}"
    plural = "es" if scene.shape == "cross" else "s"
    article = "an" if scene.colour[0] in "aeiou" else "a"
    if scene.count == "one":
        return f"{article} {scene.colour} {scene.shape}"
    return f"{scene.count} {scene.colour} {scene.shape}{plural}"


def shown_words(scene: Scene | None) -> str:
    """Return the caption of a picture as four words of one token: count, colour, shape, digit.

    Without a digit the shape is repeated; empty without a scene.
    """
    if scene is None:
        return ""
    shape = "number" if scene.shape == DIGIT else scene.shape
    return f" {scene.count} {scene.colour} {shape} {scene.digit or shape}"


def _seen(say: Callable[[Scene], str]) -> Callable[[Context], str]:
    return lambda context: BLIND if context.scene is None else say(context.scene)


def _shape(scene: Scene) -> str:
    return "It is a number." if scene.shape == DIGIT else f"It is a {scene.shape}."


def _digit(scene: Scene) -> str:
    return f"It is the number {scene.digit}." if scene.digit else NO_DIGIT


INTENTS = contextual(
    """
see_colour 2: What color is this?
    (what|which) color (is it|is this|is that|do you see|can you see)?
    (what|which) color am i showing you?
    (what is|what's|tell me) the color (|of this|of that|here)?
see_shape 2:
    (what|which) shape (is it|is this|is that|do you see|can you see)?
    (what|which) shape am i showing you?
    (what is|what's|tell me) the shape (|of this|of that|here)?
see_digit 2:
    (what|which) (number|digit) (is it|is this|is that|do you see|can you see)?
    (what is|what's|read me|tell me) the (number|digit) (|here)?
see_count 2:
    how many (do you see|can you see|are there|things do you see|are these|is that)?
    (can you|please) count (them|these|the things|what you see).
see 3: What do you see?
    what (do you see|can you see|is this|is that|am i showing you|is in the picture)?
    (can you see this|do you see this|look at this|can you see me|do you see me)?
    (describe|tell me) what you see.
""",
    see_colour=_seen(lambda scene: f"It is {scene.colour}."),
    see_shape=_seen(_shape),
    see_digit=_seen(_digit),
    see_count=_seen(lambda scene: f"I see {scene.count}."),
    see=_seen(lambda scene: f"I see {caption(scene)}."),
)
