"""An MCP server: the address book of the same company, made up."""

from mcp_stdio import serve

NAMES = ["Ada", "Bela", "Chen", "Dina", "Emre", "Femi", "Gita", "Hugo", "Ines", "Jonas"]
SURNAMES = ["Abara", "Brandt", "Costa", "Demir"]
COMPANIES = ["Halyard Ltd", "Kedge & Sons", "Northern Rope", "Sailcloth AG", "Tidewater"]

CONTACTS = [
    {
        "mail": f"guest{number:02}@example.com",
        "name": f"{NAMES[number % len(NAMES)]} {SURNAMES[number // len(NAMES) % len(SURNAMES)]}",
        "company": COMPANIES[number * 7 % len(COMPANIES)],
        "address": f"{number} Harbour Road, Port of Example",
        "history": ["met at the fair", "asked for a price", "sent a sample"] * (1 + number % 5),
    }
    for number in range(1, 41)
]


def person(mail: str) -> dict:
    """The person with a mail address: name, company, address and history."""
    for contact in CONTACTS:
        if contact["mail"] == mail:
            return contact
    raise LookupError(f"nobody has the address {mail}")


def companies() -> dict:
    """The names of all companies in the address book."""
    return {"companies": COMPANIES}


def add_note(mail: str, text: str) -> dict:
    """Add a note to a person's history."""
    raise PermissionError("this address book is only an example")


if __name__ == "__main__":
    serve("contacts", person, companies, add_note)
