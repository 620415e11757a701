"""Hypothesis profiles: the same rules everywhere, the same examples on every run in CI."""

import os

from hypothesis import settings

# No deadlines: the first example of a test pays for imports, and CI machines are shared.
settings.register_profile("omniwire", deadline=None, print_blob=True)
settings.register_profile(
    "omniwire-ci", settings.get_profile("omniwire"), derandomize=True, database=None
)
settings.load_profile("omniwire-ci" if os.environ.get("CI") else "omniwire")
