"""One turn in hand: model, tools, model, … up to the answer."""
