# %% [markdown]
# # A recursive language model
#
# Run it yourself: `python examples/recursive_language_model.py`, with the package `windlass` installed
# ([how](../../sdk/python/README.md)).
#
# A text of two million characters fits no context well. So the model does not read it: the text is a
# variable in a session, and the model writes code that looks at it, cuts it into pieces, asks a model
# about each of them, and joins the answers. The two models here are stubs, so that this page comes out
# the same every time. Put calls to a real one in their place, and the rest stays.
#
# ## A long text
#
# A harbour's log of 38 years. Once in each year a ship was lost, told in one sentence among thousands.

# %%
import random

SHIPS = ["brig", "barque", "ketch", "schooner", "lugger"]
NAMES = ["Marlin", "Petrel", "Osprey", "Curlew", "Heron", "Dunlin", "Gannet", "Plover"]
QUIET = [
    "The wind was from the west and the ferry came in late.",
    "Two lighters were tarred; the weighing of the coal went on until dark.",
    "Nothing of note; the tea house has a new roof.",
    "The pilot asks again for a better lamp at the end of the mole.",
]
LOST = [
    "In the gale the {ship} {name} was lost, and {crates} crates of tea with her.",
    "We learn that the {ship} {name} will not come: she sank, and {crates} crates of tea are gone.",
    "Of the {ship} {name} only planks were found. She had {crates} crates of tea.",
]


def harbour_log() -> str:
    chance = random.Random(38)
    years = []
    for year in range(1872, 1910):
        days = [chance.choice(QUIET) for _ in range(1000)]
        lost = chance.choice(LOST).format(
            ship=chance.choice(SHIPS), name=chance.choice(NAMES), crates=chance.randint(3, 90)
        )
        days.insert(chance.randrange(len(days)), lost)
        years.append(f"THE YEAR {year}\n" + "\n".join(days) + "\n")
    return "".join(years)


log = harbour_log()
print(f"{len(log):,} characters")

# %% [markdown]
# ## A session with the text, and two tools
#
# The text goes into the session's workspace. `ask` is the sub-model: a question about a piece of text
# that is short enough to be read. Each call takes a tenth of a second, as if a model thought about it.
# `submit` takes the answer. Its type is a dataclass: what does not fit is refused, and the code of the
# model gets an exception that says why.

# %%
import asyncio
import re
from dataclasses import dataclass

from windlass import Windlass


@dataclass
class Answer:
    crates: int
    worst_year: int
    worst_ship: str


asked: list[int] = []  # the length of each text
submitted: list[Answer] = []


async def ask(question: str, text: str) -> str:
    """Ask a language model about a text of at most 100,000 characters."""
    asked.append(len(text))
    await asyncio.sleep(0.1)
    return stub_sub_model(question, text)


def stub_sub_model(question: str, text: str) -> str:
    """Stands for a language model that reads the text and answers the question."""
    ship = re.search(r"the (?:%s) (\w+)" % "|".join(SHIPS), text)
    crates = re.search(r"(\d+) crates of tea", text)
    return f"{ship[1]}, {crates[1]}" if ship and crates else "none"


def submit(answer: Answer) -> str:
    """Submit the final answer."""
    submitted.append(answer)
    return "thank you"


w = Windlass()
s = w.session()
s.files.put("log.txt", log)
s.tools(ask, submit)

# %% [markdown]
# ## The model
#
# It yields the code of its next turn, and is sent what that code printed, and nothing else. It looks at
# the text (how long, how it begins, what a pattern finds), splits it where it saw that it can be split,
# asks about all pieces at once, and submits. Variables live from turn to turn: `text`, `years` and
# `answers` are made once.

# %%
QUESTION = "How many crates of tea were lost in all? Which year was the worst, and which ship was it?"


def stub_model(question: str):
    """Stands for a language model that was told the question and what tools there are."""
    seen = yield """
text = open("log.txt").read()
print(len(text), "characters")
print(text[:150])
"""
    assert "THE YEAR 1872" in seen  # So it can be cut into years.

    seen = yield """
import re
years = re.split(r"(?m)^(?=THE YEAR \\d+$)", text)[1:]
print(len(years), "years of", min(map(len, years)), "to", max(map(len, years)), "characters")
print(len(re.findall("lost", text)), "times 'lost',", len(re.findall("tea", text)), "times 'tea'")
"""
    assert "38 years" in seen  # None too long for a sub-model; and no word alone finds the losses.

    yield """
import asyncio, time
question = "Which ship was lost, with how many crates of tea? Say: name, number"
began = time.perf_counter()
answers = await asyncio.gather(*[tools.ask(question=question, text=year) for year in years])
print(f"# took {time.perf_counter() - began:.3f} s for {len(answers)} calls of 0.1 s")
print(answers[:3])
"""
    yield """
losses = []
for year, said in zip(years, answers):
    ship, crates = said.split(", ")
    losses.append((int(crates), int(year[9:13]), ship))
worst = max(losses)
total = sum(crates for crates, _, _ in losses)
print(tools.submit(answer={"crates": total, "worst_year": worst[1], "worst_ship": worst[2]}))
"""


# %% [markdown]
# ## The loop

# %%
model_bytes = 0
model = stub_model(QUESTION)
code = next(model)
while True:
    turn = s.run(code, deadline=60).raise_for_error()
    print(f"--- turn {turn.number}: the model sees {turn.output_bytes} bytes")
    print(turn.output.rstrip())
    model_bytes += turn.output_bytes
    if submitted:
        break
    code = model.send(turn.output)

# %% [markdown]
# The line with the time is of the machine that wrote this page: 38 calls of a tenth of a second, at once,
# with all of the text passing through them.
#
# ## The answer
#
# It arrived as an object of the program, and it is right:

# %%
answer = submitted[0]
print(answer)
print(f"{sum(asked):,} characters went to {len(asked)} sub-models, {model_bytes} to the model")

crates = [int(number) for number in re.findall(r"(\d+) crates", log)]
assert answer.crates == sum(crates) and answer.worst_year == 1872 + crates.index(max(crates))

s.close()
w.close()
