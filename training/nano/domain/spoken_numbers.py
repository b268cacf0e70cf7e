"""Numbers, times and dates in words."""

from __future__ import annotations

SMALL = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen"
    " sixteen seventeen eighteen nineteen"
).split()
TENS = ["", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
ORDINALS = (
    "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth thirteenth"
    " fourteenth fifteenth sixteenth seventeenth eighteenth nineteenth twentieth"
).split()
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS = (
    "January February March April May June July August September October November December"
).split()
NOON = 12
EVENING = 18


def cardinal(number: int) -> str:
    """Return a number from -99 to 100 in words."""
    if number < 0:
        return f"minus {cardinal(-number)}"
    if number == 100:
        return "one hundred"
    if number < len(SMALL):
        return SMALL[number]
    ten, one = divmod(number, 10)
    return TENS[ten] + (f" {SMALL[one]}" if one else "")


def ordinal(number: int) -> str:
    """Return a day of the month, 1 to 31, in words."""
    if number <= len(ORDINALS):
        return ORDINALS[number - 1]
    ten, one = divmod(number, 10)
    return "thirtieth" if not one else f"{TENS[ten]} {ORDINALS[one - 1]}"


def clock_words(hour: int, minute: int) -> str:
    """Return a time of day: "two oh five in the afternoon"."""
    twelve = hour % NOON or NOON
    part = "in the morning" if hour < NOON else "in the afternoon"
    if hour >= EVENING:
        part = "in the evening"
    if minute == 0:
        return f"{SMALL[twelve]} o'clock {part}"
    spoken = f"oh {SMALL[minute]}" if minute < 10 else cardinal(minute)
    return f"{SMALL[twelve]} {spoken} {part}"


def date_words(month: int, day: int) -> str:
    """Return a date: "the twentieth of November"."""
    return f"the {ordinal(day)} of {MONTHS[month - 1]}"
