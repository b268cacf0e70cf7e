"""What the embedded models are asked, and what a person says to the transcriber."""

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
# What a woman says in the recordings of a telephone exchange. Source: Debian, CC-BY-SA-3.0.
PERSON: Final = (
    ("all-circuits-busy-now", "All circuits are busy now."),
    ("agent-loginok", "Agent logged in."),
    ("conf-getpin", "Please enter the conference PIN number."),
    ("conf-invalidpin", "That PIN is invalid for this conference."),
    ("vm-incorrect", "Login incorrect."),
    ("vm-mailboxfull", "Sorry, but the user's mailbox can't accept more messages."),
    ("vm-msgsaved", "Your message has been saved."),
    ("vm-toforward", "Press 8 to forward the message to another user."),
    ("call-waiting", "Call waiting."),
    ("cannot-complete-as-dialed", "Your call cannot be completed as dialed."),
    ("vm-nobodyavail", "Nobody is available to take your call at the moment."),
    ("pbx-transfer", "Transfer."),
    ("privacy-incorrect", "I'm sorry, that number is not valid."),
    ("vm-passchanged", "Your passwords have been changed."),
    ("conf-locked", "This conference is locked."),
    ("speed-dial-empty", "The speed dial entry you have accessed is empty."),
    ("vm-isonphone", "Is on the phone."),
    ("tt-weasels", "Weasels have eaten our phone system."),
    ("tt-monkeysintro", "They have been carried away by monkeys."),
    ("invalid", "I'm sorry, that is not a valid extension. Please try again."),
    ("pls-hold-while-try", "Please hold while we try to connect you."),
    ("queue-thankyou", "Thank you for your patience."),
    ("conf-kicked", "You have been kicked from this conference."),
    (
        "ss-noservice",
        "The number you have dialed is not in service. Please check the number and try again.",
    ),
)
NAMES: Final = ("Anna", "Peter", "Maria", "David")
FILLERS: Final = ("What could I do this weekend?", "Do you like music?", "What is two plus three?")
