# %% [markdown]
# # A data analysis with a plot
#
# Run it yourself: `python examples/data_analysis.py`, with the packages `windlass`
# ([how](../../sdk/python/README.md)), `numpy` and `matplotlib` installed.
#
# A file goes into a session, code analyses it there without a way to the network, and a table, a plot and
# a file come out.
#
# ## A year of a bicycle counter
#
# Made up here, hour by hour: more in summer, fewer at weekends, two peaks a day. Somebody dug up the road
# in September.

# %%
import math
import random
from datetime import datetime, timedelta


def counted(at: datetime, chance: random.Random) -> int:
    season = 1 - 0.6 * math.cos(2 * math.pi * (at.timetuple().tm_yday - 15) / 365)
    commute = 3 * math.exp(-((at.hour - 8) ** 2) / 3) + 2.5 * math.exp(-((at.hour - 17) ** 2) / 5)
    leisure = max(0, math.sin(math.pi * (at.hour - 6) / 16))
    usual = leisure + (commute if at.weekday() < 5 else 0)
    dug_up = datetime(2025, 9, 8) <= at < datetime(2025, 9, 22)
    return round(100 * season * usual * (0.15 if dug_up else 1) * chance.uniform(0.8, 1.2))


chance = random.Random(7)
hours = [datetime(2025, 1, 1) + timedelta(hours=n) for n in range(365 * 24)]
rows = [f"{at:%Y-%m-%d %H}:00,{counted(at, chance)}\n" for at in hours]
data = "hour,bicycles\n" + "".join(rows)
print("".join(rows[7:10]) + "...")
print(f"{len(rows)} rows, {len(data):,} bytes")

# %% [markdown]
# ## A session with numpy and matplotlib
#
# Its interpreter is the one of this program, so it has the same packages. It may be that of any virtual
# environment. The code is confined all the same: by default it writes its workspace and nothing else, and
# reaches no network.

# %%
import sys

from windlass import Windlass

w = Windlass()
s = w.session(interpreter=sys.executable)
info = s.files.put("counts.csv", data)
print(info.path, info.bytes)

# %% [markdown]
# ## A look at it
#
# Each turn sees what the turns before it made. The value of the last expression is the result, as in any
# REPL.

# %%
turn = s.run("""
import numpy as np

when, bicycles = np.loadtxt("counts.csv", delimiter=",", skiprows=1, dtype=str, unpack=True)
days = bicycles.astype(int).reshape(-1, 24).sum(axis=1)
dates = when[::24].astype("datetime64[D]")

for month in np.unique(dates.astype("datetime64[M]")):
    of_month = days[dates.astype("datetime64[M]") == month]
    print(month, f"{of_month.mean():7.0f} a day {'#' * int(of_month.mean() // 100)}")
int(days.sum())
""", deadline=60).raise_for_error()
print(turn.output)
print("in the year:", turn.result)

# %% [markdown]
# ## Which days are not as they should be?
#
# Fitted twice: the second time without the days that were odd at first.

# %%
turn = s.run("""
weekend = np.isin((dates.astype(int) + 3) % 7, [5, 6])
year = 2 * np.pi * np.arange(365) / 365
season = [wave(times * year) for wave in (np.cos, np.sin) for times in (1, 2)]
factors = np.column_stack([np.ones(365), weekend, *season])
odd = np.zeros(365, bool)
for _ in range(2):
    weights, *_ = np.linalg.lstsq(factors[~odd], np.log(days[~odd]), rcond=None)
    expected = np.exp(factors @ weights)
    odd = days < 0.4 * expected
print(f"{odd.sum()} days have less than 40 % of what season and weekday let one expect,")
print(f"from {dates[odd].min()} to {dates[odd].max()}")
""", deadline=60).raise_for_error()
print(turn.output)

# %% [markdown]
# ## The plot
#
# A figure that the code shows, or leaves open at the end of a turn, arrives with the turn as a picture.

# %%
turn = s.run("""
import matplotlib.pyplot as plt

figure, axes = plt.subplots(figsize=(7, 3), dpi=80)
axes.plot(dates, expected, color="lightgrey", linewidth=0.8, label="expected")
axes.plot(dates, days, ".", markersize=2, label="counted")
axes.plot(dates[odd], days[odd], "rx", markersize=4, label="odd")
axes.set_ylabel("bicycles a day")
axes.legend(fontsize=8)
figure.tight_layout()
plt.show()
""", deadline=120).raise_for_error()

plot = turn.displays[0]
width, height = (int.from_bytes(plot.data[at : at + 4], "big") for at in (16, 20))
print(f"{len(turn.displays)} display: {plot.mime}")
print(f"# {width} x {height}, {len(plot.data):,} bytes")
with open("data_analysis.png", "wb") as file:
    file.write(plot.data)

# %% [markdown]
# ![Bicycles a day over a year, with what was expected; two weeks in September are marked as odd](data_analysis.png)
#
# ## A file from the session

# %%
s.run("""
with open("odd.csv", "w") as file:
    print("date,counted,expected", file=file)
    for day in np.flatnonzero(odd):
        print(dates[day], days[day], round(expected[day]), sep=",", file=file)
""").raise_for_error()
print(s.files.get("odd.csv").decode())

s.close()
w.close()
