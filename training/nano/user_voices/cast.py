"""Who speaks: the voices of training, and those kept for evaluation."""

from __future__ import annotations

from random import Random

HELD_OUT = {
    "kokoro": ("af_bella", "af_sky", "am_michael", "am_puck", "bf_emma", "bm_george"),
    "flite": ("rms",),
    "espeak": ("en-gb-scotland+m3", "en-us+f4", "en-gb+kaukovalta", "en-us+pablo"),
}
"""Voices for evaluation, that no training recording uses, nor any mixture."""

_NATURAL = (
    "af_alloy af_aoede af_heart af_jessica af_kore af_nicole af_nova af_river af_sarah am_adam"
    " am_echo am_eric am_fenrir am_liam am_onyx am_santa bf_alice bf_isabella bf_lily bm_daniel"
    " bm_fable bm_lewis"
).split()
# At home in other languages, here with English sounds: further people, with other accents.
_ABROAD = (
    "ef_dora em_alex em_santa hf_alpha hf_beta hm_omega hm_psi if_sara im_nicola jf_alpha pf_dora"
    " pm_alex pm_santa zf_xiaobei zf_xiaoni zf_xiaoxiao zf_xiaoyi zm_yunjian zm_yunxi zm_yunxia"
    " zm_yunyang"
).split()
_FLITE = ("slt", "awb", "kal", "kal16")
_PICO = ("en-US", "en-GB")
_ACCENTS = (
    "en-us",
    "en-gb",
    "en-gb-x-rp",
    "en-gb-x-gbclan",
    "en-gb-x-gbcwmd",
    "en-us-nyc",
    "en-029",
)
_VARIANTS = (
    "m1 m2 m3 m4 m5 m6 m7 m8 f1 f2 f3 f5 linda steph belinda alicia edward2 max michael adam john"
    " travis Gene Andy aunty klatt2 klatt4 anika"
).split()
MIXED = 0.5  # of the natural utterances
ABROAD = 0.35  # of the voices in them


def draw_voice(engine: str, random: Random, *, held_out: bool = False) -> str:
    """Draw a voice of an engine: "kokoro", "flite", "espeak", "pico" or "hibari".

    Args:
        engine: its name.
        random: decides.
        held_out: draw a voice that no training recording uses.
    """
    if held_out:
        return random.choice(HELD_OUT[engine])
    match engine:
        case "kokoro":
            n_voices = 2 if random.random() < MIXED else 1
            return "+".join(_draw_natural(random) for _ in range(n_voices))
        case "flite":
            return random.choice(_FLITE)
        case "pico":
            return random.choice(_PICO)
        case "espeak":
            return f"{random.choice(_ACCENTS)}+{random.choice(_VARIANTS)}"
        case _:
            return "heart"


def _draw_natural(random: Random) -> str:
    return random.choice(_ABROAD if random.random() < ABROAD else _NATURAL)
