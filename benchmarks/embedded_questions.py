"""What the embedded models are asked."""

from __future__ import annotations

from typing import Final

# Question and the pattern of a right answer.
CLOSED: Final = (
    ("What is the capital of Australia?", r"canberra"),
    ("What is the capital of France?", r"paris"),
    ("What is the capital of Japan?", r"tokyo"),
    ("What is the capital of Italy?", r"rome"),
    ("What is the capital of Canada?", r"ottawa"),
    ("Who wrote Romeo and Juliet?", r"shakespeare"),
    ("Who painted the Mona Lisa?", r"vinci|leonardo"),
    ("What is seventeen times six?", r"\b102\b|hundred (and )?two"),
    ("What is eight plus five?", r"\b13\b|thirteen"),
    ("What is twenty minus seven?", r"\b13\b|thirteen"),
    ("How many days are there in a leap year?", r"\b366\b"),
    ("How many minutes are there in an hour?", r"\b60\b|sixty"),
    ("How many legs does a spider have?", r"\b8\b|eight"),
    ("What is the opposite of hot?", r"cold"),
    ("What is the opposite of early?", r"late"),
    ("What color do you get from blue and yellow?", r"green"),
    ("Which planet is called the red planet?", r"mars"),
    ("What is the largest ocean?", r"pacific"),
    ("How do you say good morning in French?", r"bonjour"),
    ("Which animal says meow?", r"cat"),
)
OPEN: Final = (
    "How can I fall asleep more easily?",
    "What could I cook for dinner with eggs and spinach?",
    "I have a job interview tomorrow, any tips?",
    "What do you think about cats?",
    "Why is the sky blue?",
    "Can you tell me a short story about a dragon?",
    "How do I make a good cup of tea?",
    "What should I pack for a weekend at the sea?",
    "Why do people dream?",
    "I feel a bit lonely today.",
    "How does a bicycle stay upright?",
    "What is a good name for a small brown dog?",
    "Explain to a child what rain is.",
    "How can I learn to play the guitar?",
    "What is the difference between a fruit and a vegetable?",
    "Tell me a joke.",
    "What would you do with a million dollars?",
    "How do I say sorry to a friend?",
    "Why should I drink water?",
    "What makes a good book?",
)
NAMES: Final = ("Anna", "Peter", "Maria", "David")
FILLERS: Final = ("What could I do this weekend?", "Do you like music?", "What is two plus three?")
