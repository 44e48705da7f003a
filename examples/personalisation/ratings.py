"""Ratings in time order: MovieLens 100K, or some that are made of a seed.

MovieLens must not be redistributed, so it is downloaded at run time: the package recbole on PyPI
has it. Only the package's files of data are read, and nothing of it is installed.

Source: F. Maxwell Harper and Joseph A. Konstan. 2015. The MovieLens Datasets: History and Context.
ACM Transactions on Interactive Intelligent Systems 5, 4, Article 19.
"""

import hashlib
import random
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

PACKAGE = "recbole==1.2.1"
FOLDER = "recbole/dataset_example/ml-100k/ml-100k"
SHA_256 = "4edb74e2a81178c2ba9ff381495f754f996c4aea351b1272ca36b43da0935eff"
DAY = 86_400


@dataclass(frozen=True, order=True)
class Rating:
    """A user rates an item. ``at`` is in seconds since 1970."""

    at: int
    user: int
    item: int


def movielens():
    """Download the ratings, and return them in time order, with the titles of the items.

    Raises:
        OSError: it can't be downloaded, or is not what it was.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--disable-pip-version-check", "--dest", folder, PACKAGE]
        if subprocess.run(command, check=False).returncode:
            raise OSError(f"{PACKAGE} can't be downloaded")
        with zipfile.ZipFile(next(Path(folder).glob("*.whl"))) as package:
            rows, items = package.read(f"{FOLDER}.inter"), package.read(f"{FOLDER}.item").decode()
    if hashlib.sha256(rows).hexdigest() != SHA_256:
        raise OSError(f"the ratings of {PACKAGE} are not those that were expected")
    columns = (line.split("\t") for line in rows.decode().splitlines()[1:])
    ratings = sorted(Rating(int(at), int(user), int(item)) for user, item, _, at in columns)
    titles = (line.split("\t") for line in items.splitlines()[1:])
    return ratings, {int(item): f"{title} ({year})" for item, title, year, _ in titles}


def generated(seed, users=400, items=600, days=60):
    """Make ratings: a user takes what is beside the last item, and now and then another one."""
    dice = random.Random(seed)
    begin = 900_000_000 // DAY * DAY
    popular = [1 / (1 + place) ** 0.7 for place in dice.sample(range(items), items)]
    ratings, seen = set(), set()
    for user in range(1, users + 1):
        at = begin + dice.randrange(days * DAY)
        item = dice.choices(range(items), popular)[0]
        for _ in range(dice.randint(10, 60)):
            if (user, item) not in seen:
                seen.add((user, item))
                ratings.add(Rating(at, user, item + 1))
            at += dice.choice((0, 2, 5, 9, 20, 70, 400))
            near = (item + dice.choice((-2, -1, 1, 2, 3))) % items
            item = near if dice.random() < 0.75 else dice.choices(range(items), popular)[0]
    return sorted(ratings), {item + 1: f"Item {item + 1}" for item in range(items)}
