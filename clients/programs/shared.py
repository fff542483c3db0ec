"""What all programs share: the server, the question, the tool's results, the answer."""

import os

URL = os.environ["PROGRAMS_URL"]
MODEL = os.environ["PROGRAMS_MODEL"]
KEY = os.environ["PROGRAMS_KEY"]
# The model of make_model.py makes one call per "§", and then says ANSWER.
QUESTION = "What is the weather in Oslo? §"
QUESTION_TWICE = "What is the weather in Oslo, and in Lima? §§"
ANSWER = "This is the answer."
# The shortest arguments that the schemas of these tests allow.
CITIES = ("lima", "oslo")
UNITS = ("celsius", "fahrenheit")


class Weather:
    """The tool: checks its arguments and counts its calls."""

    def __init__(self):
        self.calls = []

    def get(self, city, unit, days):
        assert city in CITIES and unit in UNITS and isinstance(days, int), (city, unit, days)
        self.calls.append((city, unit, days))
        return {"degrees": 21, "sky": "clear"}
