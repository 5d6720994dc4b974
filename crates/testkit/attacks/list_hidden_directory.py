# name: list the names in hidden directories
# line: 50
import os

from attack import STAGE, try_each

NAMES = [".ssh", ".aws", ".config", ".config/gh"]
try_each((name, lambda name=name: os.listdir(f"{STAGE['home']}/{name}")) for name in NAMES)
