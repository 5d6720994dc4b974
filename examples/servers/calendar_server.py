"""An MCP server: the calendar of a small company for the first quarter of a year, made up."""

import random
from datetime import date, timedelta

from mcp_stdio import serve

FIRST, DAYS = date(2026, 1, 1), 90
ROOMS = ["Anchor", "Beacon", "Capstan"]
SUBJECTS = ["Review of the offer", "Weekly call", "Planning", "Delivery dates", "Prices for spring"]
NOTES = "Please read the papers before. Coffee is in the kitchen; the projector is the blue one. "


def make_calendar() -> dict[str, list[dict[str, object]]]:
    chance = random.Random(26)
    calendar = {}
    for day in (FIRST + timedelta(n) for n in range(DAYS)):
        if day.weekday() < 5:
            hours = sorted(chance.sample(range(8, 18), chance.randint(3, 6)))
            calendar[day.isoformat()] = [make_event(chance, day, hour) for hour in hours]
    return calendar


def make_event(chance: random.Random, day: date, hour: int) -> dict[str, object]:
    guests = chance.sample(range(1, 41), chance.randint(0, 4))
    return {
        "id": f"{day:%m%d}-{hour}",
        "subject": chance.choice(SUBJECTS),
        "start": f"{day.isoformat()}T{hour:02}:00",
        "minutes": chance.choice([30, 45, 60, 90]),
        "room": chance.choice(ROOMS),
        "guests": [f"guest{number:02}@example.com" for number in guests],
        "notes": NOTES * chance.randint(2, 6),
    }


CALENDAR = make_calendar()


def events(day: str) -> dict:
    """All events of one day.

    The day is written like 2026-01-31. Returns {"events": [...]}; an event has id, subject, start,
    minutes, room, guests (their mail addresses) and notes.
    """
    date.fromisoformat(day)
    return {"events": CALENDAR.get(day, [])}


def create_event(day: str, hour: int, subject: str) -> dict:
    """Put a new event into the calendar."""
    raise PermissionError("this calendar is only an example")


def free_rooms(day: str, hour: int) -> dict:
    """The rooms in which nothing begins at an hour of a day."""
    begins = f"{day}T{hour:02}:00"
    taken = {event["room"] for event in CALENDAR.get(day, []) if event["start"] == begins}
    return {"rooms": [room for room in ROOMS if room not in taken]}


if __name__ == "__main__":
    serve("calendar", events, create_event, free_rooms)
