"""Answers → readings: numbers such as a·(W b + w), each with its error."""
